// The client of client.py, on the official TypeScript SDK: the same commands in, the same events out.
//
//     node client.mjs --control SOCKET -- COMMAND OF THE AGENT, or its ws:// address
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { createInterface } from "node:readline";
import { acp, any, streamOver, webSocketTo } from "./sdk.mjs";

const { methods, RequestError } = acp;
const [, , , controlPath, , command, ...words] = process.argv;
const control = connect(controlPath);
const emit = (event, fields = {}) => control.write(`${JSON.stringify({ event, ...fields })}\n`);
control.on("error", () => process.exit(1));

let permission = "yes";
const held = new Map(); // session: settles what is held open for it
const terminals = new Map();
let terminalsMade = 0;

function terminalOf({ terminalId }) {
  const terminal = terminals.get(terminalId);
  if (!terminal) throw RequestError.resourceNotFound(terminalId);
  return terminal;
}

function kill({ child, status }) {
  if (!status) process.kill(-child.pid, "SIGKILL");
}

const cancelled = { outcome: { outcome: "cancelled" } };

const app = acp.client({ name: "interop" })
  .onNotification(methods.client.session.update, ({ params }) => {
    emit("update", { session: params.sessionId, update: params.update });
  })
  .onRequest(methods.client.session.requestPermission, async ({ params, signal }) => {
    emit("permission", { session: params.sessionId, call: params.toolCall, options: params.options });
    if (permission === "hold") {
      return new Promise((resolve, reject) => {
        held.set(params.sessionId, () => resolve(cancelled));
        signal.addEventListener("abort", () => {
          emit("withdrawn", { session: params.sessionId });
          reject(RequestError.requestCancelled());
        }, { once: true });
      });
    }
    return permission === "cancelled" ? cancelled : { outcome: { outcome: "selected", optionId: permission } };
  })
  .onRequest(methods.client.fs.readTextFile, ({ params }) => {
    let text;
    try {
      text = readFileSync(params.path, "utf8");
    } catch {
      throw RequestError.resourceNotFound(params.path);
    }
    const lines = text.split(/(?<=\n)/);
    const first = (params.line ?? 1) - 1;
    return { content: lines.slice(first, params.limit == null ? undefined : first + params.limit).join("") };
  })
  .onRequest(methods.client.fs.writeTextFile, ({ params }) => {
    writeFileSync(params.path, params.content);
    return {};
  })
  .onRequest(methods.client.terminal.create, ({ params }) => {
    const env = { ...process.env, ...Object.fromEntries((params.env ?? []).map(({ name, value }) => [name, value])) };
    const child = spawn(params.command, params.args ?? [], {
      env, cwd: params.cwd ?? undefined, stdio: ["ignore", "pipe", "pipe"],
      detached: true, // a group of its own, so that a shell is killed with what it runs
    });
    const terminal = { child, output: "", truncated: false, status: null };
    const keep = (piece) => {
      terminal.output += piece;
      if (params.outputByteLimit != null && terminal.output.length > params.outputByteLimit) {
        terminal.output = terminal.output.slice(-params.outputByteLimit);
        terminal.truncated = true;
      }
    };
    child.stdout.on("data", keep);
    child.stderr.on("data", keep);
    terminal.exited = new Promise((resolve) => child.on("close", (exitCode, signal) => {
      terminal.status = signal ? { signal } : { exitCode };
      resolve(terminal.status);
    }));
    const terminalId = `terminal-${++terminalsMade}`;
    terminals.set(terminalId, terminal);
    emit("terminal", { session: params.sessionId, terminal: terminalId });
    return { terminalId };
  })
  .onRequest(methods.client.terminal.output, ({ params }) => {
    const { output, truncated, status } = terminalOf(params);
    return { output, truncated, ...(status ? { exitStatus: status } : {}) };
  })
  .onRequest(methods.client.terminal.waitForExit, ({ params, signal }) => {
    const terminal = terminalOf(params);
    return new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(RequestError.requestCancelled()), { once: true });
      terminal.exited.then(resolve);
    });
  })
  .onRequest(methods.client.terminal.kill, ({ params }) => {
    kill(terminalOf(params));
    return {};
  })
  .onRequest(methods.client.terminal.release, async ({ params }) => {
    const terminal = terminalOf(params);
    kill(terminal);
    await terminal.exited;
    terminals.delete(params.terminalId);
    emit("released", { session: params.sessionId, terminal: params.terminalId });
    return {};
  })
  .onRequest(methods.client.elicitation.create, ({ params }) => {
    emit("elicitation", { session: params.sessionId, message: params.message, schema: params.requestedSchema });
    return { action: "accept", content: { name: "nobody", sure: true } };
  })
  .onRequest("_interop/echo", any, ({ params }) => ({ echo: params }))
  .onNotification("_interop/note", any, ({ params }) => {
    emit("note", { method: "interop/note", params });
  });

const METHODS = {
  initialize: ["initialize", () => ({
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, terminal: true, elicitation: { form: {} } },
    clientInfo: { name: "interop", version: "1.0" },
  })],
  logout: ["logout", () => ({})],
  authenticate: ["authenticate", ({ method_id }) => ({ methodId: method_id })],
  new_session: ["session/new", ({ cwd }) => ({ cwd, mcpServers: [] })],
  load_session: ["session/load", ({ cwd, session_id }) => ({ cwd, sessionId: session_id, mcpServers: [] })],
  resume_session: ["session/resume", ({ cwd, session_id }) => ({ cwd, sessionId: session_id, mcpServers: [] })],
  delete_session: ["session/delete", ({ session_id }) => ({ sessionId: session_id })],
  list_sessions: ["session/list", ({ cwd }) => ({ cwd })],
  close_session: ["session/close", ({ session_id }) => ({ sessionId: session_id })],
  set_session_mode: ["session/set_mode", ({ session_id, mode_id }) => ({ sessionId: session_id, modeId: mode_id })],
  set_config_option: ["session/set_config_option", ({ session_id, config_id, value }) => (
    { sessionId: session_id, configId: config_id, value }
  )],
  prompt: ["session/prompt", ({ session_id, prompt }) => ({ sessionId: session_id, prompt })],
};

// An agent is started, unless the command is the address of one.
const agent = command.startsWith("ws://") ? null : spawn(command, words, { stdio: ["pipe", "pipe", "inherit"] });
const gone = agent && new Promise((resolve) => agent.on("exit", resolve));
agent?.stdin.on("error", () => {}); // it may have gone; the SDK learns of that too
const connection = app.connect(agent ? streamOver(agent.stdin, agent.stdout) : await webSocketTo(command));
emit("started", { agent: agent?.pid ?? null });

const calls = new Map();

async function send(id, { do: what, ...given }) {
  if (what === "permission") {
    permission = given.answer;
  } else if (what === "abort") {
    calls.get(given.call).abort();
  } else if (what === "cancel") {
    await connection.agent.notify(methods.agent.session.cancel, { sessionId: given.session_id });
    held.get(given.session_id)?.(); // what a client owes an agent whose turn it cancels
    held.delete(given.session_id);
  } else if (what === "ext_method") {
    const abort = new AbortController();
    calls.set(id, abort);
    return connection.agent.request(`_${given.method}`, given.params, { cancellationSignal: abort.signal });
  } else if (what === "ext_notification") {
    await connection.agent.notify(`_${given.method}`, given.params);
  } else {
    const [method, params] = METHODS[what];
    const abort = new AbortController();
    calls.set(id, abort);
    return connection.agent.request(method, params(given), { cancellationSignal: abort.signal });
  }
  return null;
}

const lines = createInterface({ input: control });
for await (const line of lines) {
  const { id, ...given } = JSON.parse(line);
  if (given.do === "close") break;
  send(id, given).then(
    (result) => emit("result", { id, result: result ?? null }),
    (error) => emit("error", { id, code: error?.code ?? null, message: String(error?.message ?? error), data: error?.data }),
  );
}

// How a client ends an agent by the protocol: no more input, and the agent ends by itself.
agent?.stdin.end();
await gone;
connection.close();
for (const terminal of terminals.values()) kill(terminal);
emit("closed", { report: null, left: [] });
control.end(`${JSON.stringify({ event: "ended" })}\n`, () => control.destroy());
