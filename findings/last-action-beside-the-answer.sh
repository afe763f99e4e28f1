#!/bin/sh
# Packages: pydantic-ai-slim 2.68.0, langchain 1.5.2 with langchain-openai 1.7.4, smolagents 1.26.0 (PyPI).
#
# In these three frameworks a structured answer is a tool call itself. The model puts two calls into one message, as
# models do that are sure of themselves: its last action, push(), and the final answer {"pushed": true}. The push does not
# succeed: the tool returns "rejected". The next message of the model, if it is asked again, says the same.
#
# One would expect: the answer counts when there is nothing else to do: the action is run, the model reads what came of
# it and answers then; or else the action is not run.
# Seen (the same for both orders of the two calls):
#   pydantic-ai    push is run, its "rejected" is not shown to the model, the run ends well with pushed=True: 1 request
#   langchain      the same: 1 request
#   smolagents     push is run, then the whole message is refused ("do not perform any other tool calls"), and what push
#                  returned is not in the next request, so the model pushes again: of max_steps=3 come 3 pushes and no answer
#
# For whom it matters: agents that end with an action: commit and report, send and confirm. With two of the frameworks
# the report was written before the action it tells of, so a failure there is a success for whoever reads the answer;
# with the third an action, successful or not, is done again in each step that is left. The answer has to be checked
# against what the tools returned, by the program, after the run.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check 'pydantic-ai-slim[openai]==2.68.0' langchain==1.5.2 \
    langchain-openai==1.7.4 smolagents==1.26.0 openai==3.57.0 || { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/check.py" <<'PY'
import http.server, json, logging, sys, threading
import smolagents
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

logging.disable(logging.CRITICAL)
asks, pushes, calls, changed = [], [], [], False


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        asks.append(self.rfile.read(int(self.headers["content-length"])).decode())
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        body = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
                           "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                           "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Answer(BaseModel): pushed: bool
def push(branch: str) -> str:
    """Pushes.

    Args:
        branch: the branch
    """
    pushes.append(branch)
    return "rejected"


def pydantic_ai(url):
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="none"))
    return Agent(model, tools=[push], output_type=Answer).run_sync("go").output.pushed


def langchain(url):
    agent = create_agent(ChatOpenAI(model="m", base_url=url, api_key="none"), [push], response_format=ToolStrategy(Answer))
    return agent.invoke({"messages": [("user", "go")]})["structured_response"].pushed


def smol(url):
    model = smolagents.OpenAIServerModel("m", api_base=url, api_key="none")
    agent = smolagents.ToolCallingAgent(tools=[smolagents.tool(push)], model=model, max_steps=3,
                                        verbosity_level=smolagents.LogLevel.OFF)
    return agent.run("go")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
for order in (1, -1):
    for run, name, arguments, was in [
        (pydantic_ai, "final_result", {"pushed": True}, (True, 1, 1, False)),
        (langchain, "Answer", {"pushed": True}, (True, 1, 1, False)),
        (smol, "final_answer", {"answer": "pushed"}, (None, 3, 4, False)),
    ]:
        asks.clear(), pushes.clear()
        calls[:] = [{"id": f"call_{n}", "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                    for n, a in [("push", {"branch": "main"}), (name, arguments)][::order]]
        answer = run(f"http://127.0.0.1:{server.server_port}")
        now = (answer, len(pushes), len(asks), any("rejected" in ask for ask in asks))
        print(f"{run.__name__:12} answer {now[0]}, pushes {now[1]}, requests {now[2]}, model saw 'rejected': {now[3]}"
              + ("" if now == was else f"   CHANGED, was: {was}"))
        changed |= now != was
sys.exit(changed)
PY
NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 LANGSMITH_TRACING=false "$dir/venv/bin/python" "$dir/check.py"
