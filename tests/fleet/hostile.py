"""Jobs for the exports, with prompts that would harm a file that carried them as text."""

from __future__ import annotations

from ralph.fleet.jobs import Job

HOSTILE = (
    "'; touch pwned; ' \"$(touch pwned)\" `touch pwned` ${{ secrets.X }} $HOME %PATH% %d {} {#} $$ $(HOME) \\n \\\n"
    "END_OF_JOB\nEOF\n)\n}\n#SBATCH --wrap=x\r\n::set-output name=x::y\n---\n\t- \x01\x7f\u2028 é 日本 \U0001f980 \n\n"
)


def job(name: str, repository: str = "https://git.example/a.git", **given: object) -> Job:
    return Job(**{"id": name, "repository": repository, "prompt": f"Job {name}. {HOSTILE}", **given})  # type: ignore[arg-type]
