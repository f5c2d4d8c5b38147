"""Where the checkout is: said, around the package, or around the folder one stands in."""

from turncredit import paths


def test_what_is_said_wins(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNCREDIT_HOME", str(tmp_path))
    assert paths.repository() == tmp_path
    assert paths.params("smoke") == tmp_path / "params" / "smoke"


def test_a_checkouts_own_package_knows_it_from_anywhere(monkeypatch, tmp_path):
    """Even within another checkout."""
    monkeypatch.delenv("TURNCREDIT_HOME", raising=False)
    (tmp_path / "params").mkdir()
    (tmp_path / paths.METHODS).write_text("")
    monkeypatch.chdir(tmp_path)
    assert paths.repository() == paths.PACKAGE.parents[1]


def test_an_installed_package_finds_the_clone_around_the_notebook(monkeypatch, tmp_path):
    monkeypatch.delenv("TURNCREDIT_HOME", raising=False)
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "env" / "lib" / "turncredit")
    clone = tmp_path / "clone"
    (clone / "notebooks").mkdir(parents=True)
    monkeypatch.chdir(clone / "notebooks")
    assert paths.repository() == tmp_path / "env", "nothing there looks like a checkout"
    (clone / "params").mkdir()
    (clone / paths.METHODS).write_text("")
    assert paths.repository() == clone
