"""Provenance records the working tree as it is, once, and children record the launch."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmlab.core import environ, provenance


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(provenance, "_captured", None)
    monkeypatch.delenv(provenance.VARIABLE, raising=False)


@pytest.fixture
def repository(tmp_path, monkeypatch, fresh):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a.txt").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_clean_tree_is_the_commits_tree(repository):
    captured = provenance.capture()
    assert captured.dirty is False
    assert captured.branch == "main"


def test_an_untracked_file_makes_the_tree_dirty_and_leaves_the_index_alone(repository):
    (repository / "b.txt").write_text("two")
    assert provenance.capture().dirty is True
    status = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert status.stdout == "?? b.txt\n"


def test_without_git_the_code_fields_are_empty(tmp_path, monkeypatch, fresh):
    monkeypatch.chdir(tmp_path)
    captured = provenance.capture()
    assert (captured.commit, captured.tree, captured.dirty) == (None, None, None)


def test_sixteen_threads_inspect_git_once(repository, monkeypatch):
    calls = []
    inspect = provenance._inspect
    monkeypatch.setattr(provenance, "_inspect", lambda folder: calls.append(1) or inspect(folder))
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: provenance.capture(), range(16)))
    assert len(calls) == len(found) == 1


def test_a_child_records_the_launch_and_not_itself(repository):
    script = "from lmlab.core import provenance; print('|'.join(provenance.capture().argv))"
    env = environ.child_environment(**provenance.child_variable())
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "|".join(sys.argv)


def test_a_malformed_launch_record_is_ignored_with_a_warning(repository, monkeypatch, caplog):
    monkeypatch.setenv(provenance.VARIABLE, json.dumps({"commit": 3}))
    assert provenance.capture().branch == "main"
    assert "ignored" in caplog.text
