"""Gives ralph two tasks, one after the other, and gives up a retry that would wait for a minute. See docs/control.md."""

import json
import subprocess

command = ["ralph", "run", "--input-format", "stream-json", "--output-format", "stream-json"]
ralph = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")


def send(**line):
    print(json.dumps(line), file=ralph.stdin, flush=True)


def say(text):
    send(type="user", message={"role": "user", "content": text})


tasks = ["Write hello.py", "Write a test for it"]
say(tasks.pop(0))
for line in ralph.stdout:
    event = json.loads(line)
    if event.get("subtype") == "api_retry" and event["retry_delay_ms"] >= 60_000:
        send(type="control_request", request_id="1", request={"subtype": "abort_retry"})
    elif event["type"] == "result":
        print(event["terminal_reason"], event.get("result") or event["errors"][-1])
        if tasks:
            say(tasks.pop(0))
        else:
            ralph.stdin.close()
print("exit", ralph.wait())
