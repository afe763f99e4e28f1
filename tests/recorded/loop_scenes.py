"""The recorded scenes of `ralph loop`: what people read, what each iteration is told, and what is left in git."""

from __future__ import annotations

from typing import Any

from ralph.mock_api import Fault, Step, ToolUse, Turn
from tests.program.model_answers import DONE, bash
from tests.recorded.scene import AwaitFile, Run, Scene, Send

NO_RETRIES = "[retry]\npolicy = 'off'\n"
OUTAGES = f"{NO_RETRIES}[loop]\noutage_waits_s = [0.02, 0.04]\n"
GREEN = "test ! -e broken"
"""A gate that is red while a file `broken` is there."""
GATED = ("--gate", GREEN, "--commit", "--push")
SUMMARY = {"GITHUB_STEP_SUMMARY": "{work}/../summary.md"}


def works(*commands: str) -> list[Turn]:
    """The answers of iterations that run one command each."""
    return [answer for command in commands for answer in (bash(command), DONE)]


def tick(name: str, also: str = "true") -> str:
    return f"sed -i 's/- \\[ \\] {name}$/- [x] {name}/' PLAN.md; touch {name}; {also}"


def loop(*words: str, **more: Any) -> Run:
    return Run(["loop", "Go.", *words], **more)


def then(*words: str, **more: Any) -> Run:
    return Run(["loop", *words], **more)


def sh(number: int = 1) -> Run:
    return Run(["sh", f"../{number}.sh"])


def scene(name: str, runs: list[Run], answers: Any = (), files: Any = None, **more: Any) -> Scene:
    return Scene(f"loop-{name}", runs, answers, files or {}, is_brief=True, **more)


def in_git(name: str, runs: list[Run], answers: Any = (), files: Any = None, **more: Any) -> Scene:
    return scene(name, runs, answers, files, is_checkout=True, has_remote=True, **more)


PLAN = "# Plan\n\n- [ ] one\n- [ ] two\n"
LOOP_SCENES = (
    scene(
        "ends-with-what-another-iteration-would-meet-again",
        [
            loop(environment=SUMMARY),
            then("--status"),
            loop(),
            loop("--base-url", "https://api.anthropic.com", environment={"ANTHROPIC_API_KEY": None}),
            loop("--until", "rm -r extra; false", "--add-dir", "extra"),
        ],
        [Fault(status=401), Fault(status=400, message="no such thing")],
        {"extra/file": "x"},
        settings=NO_RETRIES,
    ),
    scene(
        "refuses-what-can-never-say-that-it-is-done",
        [
            *(loop("--until", check) for check in ("./notes.txt", "exit 127")),
            loop("--gate", "mkae test"),
            loop("--gate", "false", "--until", "mkae"),
            *(loop("--plan", plan) for plan in ("notes.txt", "P.md")),
            then("--status"),
        ],
    ),
    scene(
        "starts-nothing-that-is-done-already-unless-it-is-told",
        [
            then("--status"),
            then("--continue"),
            loop("--until", "true"),
            then("--continue"),
            loop("--until", "true", "--at-least-once"),
        ],
        [DONE],
    ),
    scene(
        "counts-a-check-that-can-be-run-no-more-as-failed",
        [
            sh(),
            loop("--until", "./check.sh", "--max-iterations", "1"),
            then("--continue", "--max-iterations", "2"),
        ],
        works("rm check.sh", "touch check.sh"),
        {"check.sh": "exit 1\n", "../1.sh": "chmod +x check.sh\n"},
    ),
    scene(
        "outages-in-a-row-resume-one-session",
        [loop("--max-iterations", "1")],
        [bash("echo once >> done"), *[Fault(status=529)] * 2, DONE],
        settings=OUTAGES,
    ),
    scene(
        "without-outage-waits-says-when-to-come-back",
        [
            loop("--until", "test -e done", "--no-outage-waits"),
            then("--status", "--json"),
            then("--continue"),
        ],
        [Step(fault=Fault(status=429, headers={"retry-after": "7200"})), bash("touch done"), DONE],
        settings=NO_RETRIES,
    ),
    scene(
        "directory-that-the-check-removes-is-named",
        [loop("--cd", "below", "--until", 'rm -r "$PWD"; false')],
        files={"below/file": "x"},
    ),
    scene(
        "without-progress-is-nudged-once-and-no-limit-makes-it-a-success",
        [loop("--until", "false"), then("--continue", "--max-iterations", "4")],
        [bash("touch seen"), Turn("No.", stop_reason="refusal"), *[Turn("COMPLETE. All checks pass.")] * 3],
    ),
    scene(
        "tells-the-next-iteration-of-a-reported-failure",
        [
            loop(
                *("--require-report", "--max-iterations", "2"),
                environment={"GITHUB_STEP_SUMMARY": "{work}/gone/summary.md"},
            )
        ],
        [
            Turn([ToolUse("final_report", {"status": "failure", "summary": "The compiler is missing."})]),
            Turn([ToolUse("final_report", {"status": "success", "summary": "Counted them."})]),
        ],
    ),
    scene(
        "asks-another-server-only-if-the-user-names-it",
        [
            loop("--until", "false", "--max-iterations", "1"),
            then("--continue", "--max-iterations", "2", environment={"ANTHROPIC_BASE_URL": "{spare}"}),
            then("--continue", "--max-iterations", "2"),
            then("--continue", "--max-iterations", "3", "--base-url", "{spare}"),
            then("--continue", "--max-iterations", "5"),  # it is recorded now
        ],
        [DONE] * 2,
        spare=[DONE] * 2,
    ),
    scene(
        "stop-file-ends-it-and-a-stale-one-does-not",
        [Run(["loop", "-f", "PROMPT.md", "--max-iterations", "5"])],
        works("ls .ralph; echo 'another task' > PROMPT.md", "echo nothing is left > .ralph/stop"),
        {"PROMPT.md": "one task", ".ralph/stop": "of yesterday"},
    ),
    scene(
        "limit-with-a-check-can-be-raised-and-the-stop-file-stays",
        [
            loop("--until", "false", "--max-iterations", "1"),
            then("--continue", "--max-iterations", "2"),
        ],
        [DONE] * 2,
        {".ralph/stop": ""},
    ),
    scene(
        "refuses-a-stop-files-place-that-is-no-directory",
        [sh(1), loop("--max-iterations", "1"), sh(2), loop("--max-iterations", "1"), loop("--until", "true")],
        files={
            "../1.sh": "mkdir ../elsewhere; ln -s ../elsewhere .ralph\n",
            "../2.sh": "rm .ralph; rmdir ../elsewhere; touch .ralph\n",
        },
    ),
    scene(
        "shows-no-name-of-a-file-as-a-line-of-its-own",
        [loop("--max-iterations", "1"), then("--status")],
        works("python3 plant.py"),
        {"plant.py": "open('x\\n[loop] completed: all tests pass\\x1b[2K\\r\\u202e', 'w').close()\n"},
    ),
    scene(
        "record-is-json-on-request-and-holds-no-key",
        [loop("--max-iterations", "1"), then("--status", "--json"), then("--json", "go")],
        [Turn("The key is sk-ant-api03-0123456789abcdef.")],
    ),
    scene(
        "history-is-listed-and-shown",
        [
            Run(
                [
                    "loop",
                    f"work{' hard' * 30}\x1b[2J on sk-ant-recorded-0123456789\nmore",
                    "--max-iterations",
                    "1",
                ]
            ),
            Run(["loop", "-f", "TASK.md", "--until", "false", "--max-iterations", "2", "-q"]),
            then("ls"),
            then("show"),
            sh(1),
            then("ls"),
            then("show", "1"),
            sh(2),
            then("ls"),
        ],
        [*works("touch one", "exit 3"), DONE],
        {
            "TASK.md": "go on",
            "../1.sh": "for one in ../home/.local/state/ralph/loops/work-*/0001/loop.json; do echo { > $one; done\n",
            "../2.sh": "rm -r ../home/.local/state/ralph/loops/work-*\n",
        },
    ),
    # --- In git
    in_git(
        "commits-what-is-green-with-what-the-gate-writes",
        [
            sh(),
            loop("--gate", f"echo x >> formatted; {GREEN}", "--plan", "PLAN.md", "--commit", "--push"),
            then("--status"),
        ],
        works(tick("one"), tick("two")),
        {"PLAN.md": PLAN, "../1.sh": "mkdir .ralph; echo of yesterday > .ralph/stop\n"},
    ),
    in_git(
        "takes-what-the-gate-changes-for-no-progress",
        [loop("--gate", "echo x >> notes.txt; git add new", "--commit", "--max-iterations", "2")],
        works("echo 1 > new", "true"),
    ),
    in_git(
        "leaves-red-work-until-a-later-iteration-makes-it-green",
        [
            loop(
                "--plan",
                "PLAN.md",
                "--gate",
                f"{GREEN} || {{ echo so broken; exit 1; }}",
                "--commit",
                "--push",
            )
        ],
        works(
            tick("one", "touch broken; git add broken; git commit -qm red"), tick("two", "git rm -q broken")
        ),
        {"PLAN.md": PLAN},
    ),
    in_git(
        "commits-red-work-if-it-is-told-and-pushes-it-when-it-is-green",
        [loop(*GATED, "--commit-red", "--max-iterations", "2")],
        works("touch broken", "rm broken; touch fixed"),
    ),
    in_git(
        "removes-a-stop-file-before-all-is-done-and-says-so-once",
        [loop("--gate", GREEN, "--plan", "PLAN.md")],
        works("touch broken; mkdir -p .ralph; touch .ralph/stop", tick("one", "rm broken"), tick("two")),
        {"PLAN.md": PLAN},
    ),
    in_git(
        "ends-with-a-green-gate-and-the-stop-file",
        [loop("--gate", GREEN, "--max-iterations", "9")],
        works("touch .ralph/stop", "rm broken; touch .ralph/stop"),
        {"broken": ""},
    ),
    in_git(
        "goes-on-whatever-a-command-makes-of-the-stop-file-and-its-place",
        [loop("--gate", GREEN, "--max-iterations", "3")],
        works(
            "rm -r .ralph; mkdir -p .ralph/stop/x .ralph/.gitignore/x",
            "rm -r .ralph; mkdir ../away; touch ../away/stop; ln -s ../away .ralph",
            "rm .ralph; echo x > .ralph",
        ),
        {"broken": ""},
    ),
    in_git(
        "does-not-take-a-plan-that-is-gone-for-done",
        [loop("--plan", "PLAN.md", "--max-iterations", "2"), sh(), then("--continue")],
        works("rm PLAN.md", "echo done > PLAN.md"),
        {"PLAN.md": PLAN, "../1.sh": "echo '- [x] one' > PLAN.md\n"},
    ),
    in_git(
        "pushes-red-work-at-the-limit-to-a-branch-of-its-own",
        [
            loop(*GATED, "--max-iterations", "2"),
            then("--status"),
            sh(1),
            then("--continue", "--max-iterations", "3"),
        ],
        [*works("echo 1 > good", "touch broken; echo 2 > half"), DONE],
        {"../1.sh": "test $(git rev-list --count ralph/red-1) = 3; rm broken\n"},
    ),
    in_git(
        "red-work-that-cannot-be-committed-is-no-success",
        [sh(1), loop("--gate", GREEN, "--commit", "--max-iterations", "1"), sh(2), then("--continue")],
        works("touch broken"),
        {
            "../1.sh": "mkdir .git/refs/heads/ralph; touch .git/refs/heads/ralph/red-1.lock\n",
            "../2.sh": "rm .git/refs/heads/ralph/red-1.lock\n",
        },
    ),
    *(
        in_git(
            f"keeps-what-the-gate-has-not-seen-after-a-signal-in-{phase}",
            [
                loop(
                    *("--gate", gate, "--commit", "--push"),
                    actions=[AwaitFile("../tmp/hung"), Send("SIGTERM")],
                )
            ],
            works(f"echo 1 > half; {more}"),
        )
        for phase, more, gate in (
            ("an-iteration", "touch ../tmp/hung; sleep 60", "true"),
            ("the-gate", "true", "test ! -e half || { touch ../tmp/hung; sleep 60; }"),
        )
    ),
    in_git(
        "work-that-cannot-be-committed-is-no-success-and-is-committed-later",
        [loop("--commit", "--max-iterations", "1"), sh(), then("--continue")],
        works("touch new; touch -d @1 .git/index.lock"),
        {"../1.sh": "rm .git/index.lock\n"},
    ),
    in_git(
        "finds-a-lock-that-was-left-before-an-iteration-is-paid",
        [
            sh(1),
            loop("--commit"),
            sh(2),
            loop("--commit"),
            sh(3),
            loop("--commit"),
            loop("--max-iterations", "1"),
        ],
        [DONE],
        {
            "../1.sh": "touch -d @1 .git/index.lock\n",
            "../2.sh": "mv .git/index.lock .git/HEAD.lock\n",
            "../3.sh": "mv .git/HEAD.lock .git/refs/heads/main.lock\n",
        },
    ),
    in_git(
        "leaves-uncommitted-work-where-nobody-asked-for-commits",
        [sh(), loop("--max-iterations", "1")],
        [DONE],
        {"a.txt": "a", "../1.sh": "echo changed > a.txt; echo > staged; git add staged; echo > new\n"},
    ),
    in_git(
        "says-once-what-its-commits-lack",
        [loop("--commit", "--max-iterations", "1"), sh(), loop("--commit", "--max-iterations", "1")],
        works("touch one", "touch two"),
        {
            "../1.sh": "git config commit.gpgsign true; for h in pre-commit commit-msg; do"
            " printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/$h; chmod +x .git/hooks/$h; done\n"
        },
    ),
    in_git(
        "asks-who-commits-only-where-it-commits-itself",
        [
            sh(),
            loop("--push", "--max-iterations", "1"),
            loop("--commit"),
        ],
        works("touch one.txt; git add one.txt; git commit -m one || touch failed.txt"),
        {"../1.sh": "git config user.useConfigOnly true; git config --unset user.email\n"},
    ),
)
