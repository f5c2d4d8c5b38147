"""Completion scripts for three shells, made of `COMMANDS`; no package is needed for them."""

from turncredit.cli.commands import (
    COMMANDS,
    COMMON,
    COMPLETION,
    FILE,
    FOLDER,
    NOTHING,
    PARAMS,
    SHELLS,
    Option,
)

NAMES = {command.name: command.summary for command in COMMANDS} | {"completion": COMPLETION}
OPTIONS = {command.name: (PARAMS, *command.options, *COMMON) for command in COMMANDS}


def script(shell: str) -> str:
    """The script that this shell reads."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _bash() -> str:
    flags = "\n".join(
        f'    {name}) words="{" ".join(option.flag for option in options)} --help" ;;'
        for name, options in OPTIONS.items()
    )
    return f"""\
# bash: source <(turncredit completion bash)
_turncredit() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  COMPREPLY=()
  case "$before" in
    {_flags(FILE)}) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
    {_flags(FOLDER)}) mapfile -t COMPREPLY < <(compgen -d -- "$current"); return ;;
  esac
  case "${{COMP_WORDS[1]}}" in
{flags}
    completion) words="{" ".join(SHELLS)}" ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && words="{" ".join(NAMES)} --help --version"
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o filenames -F _turncredit turncredit
"""


def _flags(takes: str) -> str:
    """Every option that takes such a thing, as a pattern of case."""
    found = dict.fromkeys(o.flag for options in OPTIONS.values() for o in options
                          if o.takes == takes)  # fmt: skip
    return "|".join(found)


def _zsh() -> str:
    names = "\n".join(f"    {_quoted(f'{name}:{text}')}" for name, text in NAMES.items())
    cases = "\n".join(
        f"    {name}) _arguments {' '.join(_zsh_option(option) for option in options)} ;;"
        for name, options in OPTIONS.items()
    )
    return f"""\
#compdef turncredit
# zsh: turncredit completion zsh > a folder of $fpath, as _turncredit
_turncredit() {{
  local -a commands
  commands=(
{names}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command="$words[2]"
  shift words
  (( CURRENT-- ))
  case "$command" in
{cases}
    completion) _values shell {" ".join(SHELLS)} ;;
  esac
}}
_turncredit "$@"
"""


def _zsh_option(option: Option) -> str:
    action = {FILE: ":file:_files", FOLDER: ":folder:_files -/", NOTHING: ""}
    text = option.help.replace("[", r"\[").replace("]", r"\]").replace(":", r"\:")
    return _quoted(f"{option.flag}[{text}]{action.get(option.takes, ':' + option.takes + ':')}")


def _fish() -> str:
    lines = ["# fish: turncredit completion fish | source", "complete -c turncredit -f"]
    for name, text in NAMES.items():
        lines.append(
            f"complete -c turncredit -n __fish_use_subcommand -a {name} -d {_quoted(text)}"
        )
    for name, options in OPTIONS.items():
        for option in options:
            takes = {NOTHING: "", FILE: " -r -F", FOLDER: " -x -a '(__fish_complete_directories)'"}
            lines.append(
                f"complete -c turncredit -n '__fish_seen_subcommand_from {name}' -l "
                f"{option.flag[2:]}{takes.get(option.takes, ' -x')} -d {_quoted(option.help)}"
            )
    shells = " ".join(SHELLS)
    where = "'__fish_seen_subcommand_from completion'"
    return "\n".join([*lines, f"complete -c turncredit -n {where} -a '{shells}'"]) + "\n"


def _quoted(text: str) -> str:
    """For all three shells.

    >>> _quoted("AEM's")
    "'AEM'\\\\''s'"
    """
    return "'" + text.replace("'", "'\\''") + "'"
