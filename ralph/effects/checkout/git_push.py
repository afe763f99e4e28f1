"""Pushes the branch of a checkout: where to, and what came of it. Writes no configuration, and forces nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ralph.effects.checkout.git import failure
from ralph.loop_ports import CheckoutError

if TYPE_CHECKING:
    from ralph.effects.checkout.git import Git, GitAnswer
    from ralph.effects.checkout.git_status import GitStatus

# Our own call runs no hook (of which one would be git-lfs's), signs nothing, and goes into no submodule. The first
# `remote.*.receivepack` counts in git, so that no later setting replaces it; an option does.
_PLAINLY = (
    *("push", "--porcelain", "--no-verify", "--no-signed", "--no-follow-tags", "--recurse-submodules=no"),
    "--receive-pack=git-receive-pack",
)
# `<flag>\t<from>:<to>\t<summary>`, the summary of a plain push being "<old>..<new>"; a remote's own words begin with
# "remote: ".
_PUSHED = re.compile(
    rb"^(?P<flag>[ *=])\t\S+:\S+\t(?:(?P<old>[0-9a-f]+)\.\.(?P<new>[0-9a-f]+)$)?", re.MULTILINE
)


@dataclass(frozen=True)
class PushTarget:
    remote: str
    branch: str
    """Of this checkout, without `refs/heads/`."""
    remote_branch: str

    @property
    def refspec(self) -> str:
        return f"refs/heads/{self.branch}:refs/heads/{self.remote_branch}"


def target_of(git: Git, status: GitStatus) -> PushTarget:
    """The branch's configured one, else the only remote, else `origin`. Raises CheckoutError, with what to do."""
    branch = status.branch
    if branch is None:
        raise CheckoutError("HEAD is detached: there is no branch to push; git switch -c NAME")
    values, remotes = git.settings.values, git.settings.remotes
    configured = (
        values.get(f"branch.{branch}.pushremote")
        or values.get("remote.pushdefault")
        or values.get(f"branch.{branch}.remote")
    )
    if configured and configured != ".":  # a dot: it follows another branch of this repository
        return PushTarget(configured, branch, _remote_branch(git, branch, configured))
    if not remotes:
        raise CheckoutError("there is no remote to push to; git remote add origin URL")
    if len(remotes) > 1 and "origin" not in remotes:
        raise CheckoutError(
            f"branch {branch} has no remote, and of {', '.join(remotes)} none is named origin; "
            f"git config branch.{branch}.remote NAME"
        )
    return PushTarget(remotes[0] if len(remotes) == 1 else "origin", branch, branch)


def push(git: Git, target: PushTarget) -> int:
    """How many commits the remote did not have. Raises CheckoutError and Interrupted."""
    before = _commits(git, f"refs/heads/{target.branch}", "--not", f"--remotes={target.remote}")
    answer = git.reach(*_PLAINLY, "--", target.remote, target.refspec)
    if answer.status:
        raise failure(git.top, "push", answer)
    return _count(git, answer, before)


def try_out(git: Git, target: PushTarget, *, has_commits: bool) -> None:
    """Speak with the remote without changing it. Raises CheckoutError and Interrupted."""
    if has_commits:
        answer = git.reach(*_PLAINLY, "--dry-run", "--", target.remote, target.refspec)
    else:
        answer = git.reach("ls-remote", "--upload-pack=git-upload-pack", "--", target.remote)
    if answer.status:
        raise failure(git.top, "push" if has_commits else "ls-remote", answer)


def unpushed(git: Git, target: PushTarget) -> int | None:
    """By what was last heard of the remote; None: nothing is kept of it."""
    if f"remote.{target.remote}.fetch" not in git.settings.values:
        return None
    return _commits(git, f"refs/heads/{target.branch}", "--not", f"--remotes={target.remote}")


def _remote_branch(git: Git, branch: str, remote: str) -> str:
    """Its own name, unless the user asked for the upstream's: a branch cut from `main` must not land there."""
    values = git.settings.values
    merge = values.get(f"branch.{branch}.merge", "")
    is_upstream = values.get("push.default") in {"upstream", "tracking"}
    if is_upstream and remote == values.get(f"branch.{branch}.remote") and merge.startswith("refs/heads/"):
        return merge.removeprefix("refs/heads/")
    return branch


def _count(git: Git, answer: GitAnswer, before: int) -> int:
    said = _PUSHED.search(answer.output)
    if said is None or said["flag"] == b"*":
        return before
    if said["flag"] == b"=" or said["old"] is None:
        return 0
    return _commits(git, f"{said['old'].decode()}..{said['new'].decode()}")


def _commits(git: Git, *what: str) -> int:
    return int(git.read("rev-list", "--count", *what))
