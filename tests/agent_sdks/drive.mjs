// Drives ralph with TypeScript's Agent SDK: reads trials from standard input, and prints what each of their runs gave.
//
//   node drive.mjs FOLDER_OF_THE_SDK <trials.json
//
// `drive.py` does the same for Python's.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const home = `${process.argv[2]}/node_modules/@anthropic-ai/claude-agent-sdk/sdk.mjs`;
const { query, tool, createSdkMcpServer, InMemorySessionStore } = await import(pathToFileURL(home).href);
const { z: zod } = await import(pathToFileURL(`${process.argv[2]}/node_modules/zod/index.js`).href);

// How many trials run at the same time.
const AT_ONCE = 2;

// Puts functions in the places of the answers that they give.
function callbacks(options, ran) {
  const made = { ...options, env: { ...process.env, ...options.env } };
  if (made.canUseTool) {
    const answer = made.canUseTool;
    made.canUseTool = async (tool, input) => {
      ran.asked.push([tool, input]);
      return { updatedInput: input, ...answer };
    };
  }
  if (made.hooks) {
    const hook = (answer) => async (event) => {
      ran.called.push(event);
      if (answer.throws) throw new Error(answer.throws);
      return answer;
    };
    made.hooks = Object.fromEntries(
      Object.entries(made.hooks).map(([event, matchers]) => [
        event,
        matchers.map(({ answer, ...rest }) => ({ ...rest, hooks: [hook(answer)] })),
      ]),
    );
  }
  if (made.mcpServers) {
    made.mcpServers = Object.fromEntries(Object.keys(made.mcpServers).map((name) => [name, addingServer(name, ran)]));
  }
  if (made.sessionStore) made.sessionStore = new InMemorySessionStore();
  if (made.onUserDialog) made.onUserDialog = async () => ({ behavior: "cancelled" });
  if (made.abortController) made.abortController = new AbortController();
  if (made.spawnClaudeCodeProcess) {
    made.spawnClaudeCodeProcess = ({ command, args, cwd, env, signal }) => {
      ran.called.push("spawned");
      return spawn(command, args, { cwd, env, signal, stdio: ["pipe", "pipe", "ignore"] });
    };
  }
  made.stderr ??= (text) => ran.stderr.push(text);
  return made;
}

// A server in this process with one tool, which adds two numbers.
function addingServer(name, ran) {
  const add = async ({ a, b }) => {
    ran.called.push({ a, b });
    return { content: [{ type: "text", text: String(a + b) }] };
  };
  const numbers = { a: zod.number(), b: zod.number() };
  return createSdkMcpServer({ name, tools: [tool("add", "Adds two numbers.", numbers, add)] });
}

// Makes one run. Its steps are messages, and calls of the query's methods.
async function drive(run) {
  const ran = { messages: [], answers: [], called: [], asked: [], stderr: [], error: null };
  const queued = [];
  let wake = () => {};
  const say = (text) => {
    queued.push(text);
    wake();
  };
  async function* prompt() {
    for (;;) {
      while (queued.length) {
        const content = queued.shift();
        if (content === null) return;
        yield { type: "user", message: { role: "user", content }, parent_tool_use_id: null, session_id: "" };
      }
      await new Promise((resolve) => (wake = resolve));
    }
  }
  try {
    const options = callbacks(run.options, ran);
    const asked = query({ prompt: prompt(), options });
    const steps = [...run.steps];
    const next = async () => {
      for (;;) {
        const step = steps.shift();
        if (step === undefined) return say(null);
        if ("say" in step) return say(step.say);
        ran.answers.push((await asked[step.call](...(step.with ?? []))) ?? null);
      }
    };
    await next();
    for await (const message of asked) {
      ran.messages.push(message);
      if (message.type === "assistant") options.abortController?.abort();
      if (message.type === "result") await next();
    }
  } catch (error) {
    ran.error = `${error.name}: ${error.message}`;
  }
  return ran;
}

function sessionOf(gave) {
  const ids = gave.flatMap((ran) => ran.messages.filter((m) => m.type === "result").map((m) => m.session_id));
  return ids.at(-1) ?? "";
}

const trials = JSON.parse(readFileSync(0, "utf8"));
const waiting = [...trials];
const result = {};
async function work() {
  for (let trial = waiting.shift(); trial; trial = waiting.shift()) {
    const gave = [];
    for (const run of trial.runs) {
      gave.push(await drive(JSON.parse(JSON.stringify(run).replaceAll("$SESSION", sessionOf(gave)))));
    }
    result[trial.name] = gave;
  }
}
await Promise.all(Array.from({ length: AT_ONCE }, work));
console.log(JSON.stringify(result));
