#!/bin/sh
# Packages: langchain 1.5.2, langchain-openai 1.7.4, openai 3.57.0 (PyPI).
#
# LangChain's ModelRetryMiddleware tries a failed model request again. The provider is down and answers 500 each time.
#
# One would expect: after the last try the error is raised, as ModelRetryMiddleware is there to retry and its siblings
# (max_retries of the chat model, with_retry) raise; and a ModelFallbackMiddleware around it then asks the other model.
# Seen, with the default arguments:
#   - nothing is raised. The agent's run ends well, and its last message, of the assistant, is
#     "Model call failed after 2 attempts with ...: Error code: 500 - ..."
#   - middleware=[ModelFallbackMiddleware(other), ModelRetryMiddleware(...)]: the other model is NOT asked, since to the
#     fallback the sentence is an answer. With the two the other way round it is asked, after one try of the first.
#   - with response_format the result's structured_response is None
#   - with a checkpointer the sentence stays in the conversation: the next request tells the model that it said it
#   - a 401 is raised, also by default: only what is worth a retry is turned into an answer
# on_failure="error" gives what one would expect.
#
# For whom it matters: a nightly agent whose last message is committed, mailed or handed to the next step. An outage is
# then a success with an odd text, no alarm goes off, the paid fallback is never used, and a session that goes on
# carries the sentence for good.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check langchain==1.5.2 langchain-openai==1.7.4 openai==3.57.0 \
    langchain-core==1.8.3 langgraph==1.2.24 || { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/check.py" <<'PY'
import http.server, json, sys, threading
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ModelRetryMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

GO = {"messages": [("user", "go")]}
FAILED = "Model call failed after {} with OpenAIAPIError: Error code: 500 - no"


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asks.append((self.path, ask))
        status = status_of.get(self.path, 200)
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "the other model"}, "finish_reason": "stop"}]}
        body = json.dumps(answer if status == 200 else {"error": {"message": "no", "type": "server_error"}}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Out(BaseModel): count: int
def act(cmd: str) -> str:
    """Act."""
    return "ok"
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
asks, changed, status_of = [], False, {"/down/chat/completions": 500, "/key/chat/completions": 401}


def model(path):
    return ChatOpenAI(model="m", base_url=f"http://127.0.0.1:{server.server_port}/{path}", api_key="none", max_retries=0)
def retry(**options): return ModelRetryMiddleware(max_retries=1, initial_delay=0.01, **options)
def run(middleware, path="down", **options):
    asks.clear()
    try: return create_agent(model(path), [act], middleware=middleware, **options).invoke(GO)
    except Exception as error: return type(error).__name__
def check(label, now, was):
    global changed
    print(f"{label:34} {now}" + ("" if now == was else f"   CHANGED, was: {was}"))
    changed |= now != was
def text(result): return result if isinstance(result, str) else result["messages"][-1].content
def asked(path): return sum(f"/{path}/" in where for where, _ in asks)


check("default", text(run([retry()])), FAILED.format("2 attempts"))
check("on_failure='error'", text(run([retry(on_failure="error")])), "OpenAIAPIError")
check("fallback around retry", text(run([ModelFallbackMiddleware(model("up")), retry()])), FAILED.format("2 attempts"))
check("  first, other model asked", (asked("down"), asked("up")), (2, 0))
check("retry around fallback", text(run([retry(), ModelFallbackMiddleware(model("up"))])), "the other model")
check("  first, other model asked", (asked("down"), asked("up")), (1, 1))
check("response_format, the result", run([retry()], response_format=ToolStrategy(Out))["structured_response"], None)
check("401", text(run([retry()], path="key")), "OpenAIAuthenticationError")
agent = create_agent(model("down"), [act], middleware=[retry()], checkpointer=InMemorySaver())
for _ in range(2):
    agent.invoke(GO, {"configurable": {"thread_id": "1"}})
    status_of.clear()
check("the next request says", [m["content"] for m in asks[-1][1]["messages"]], ["go", FAILED.format("2 attempts"), "go"])
sys.exit(changed)
PY
NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 LANGSMITH_TRACING=false "$dir/venv/bin/python" "$dir/check.py"
