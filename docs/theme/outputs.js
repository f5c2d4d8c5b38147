// Views of trajectories in notebooks follow the site's switch between light and dark.
const follow = () => {
  const light = document.body.dataset.mdColorScheme !== "slate";
  for (const output of document.querySelectorAll(".output"))
    for (const view of output.shadowRoot?.querySelectorAll(".themed") ?? [])
      view.dataset.jpThemeLight = light;
};
new MutationObserver(follow).observe(document.body, {attributeFilter: ["data-md-color-scheme"]});
follow();
