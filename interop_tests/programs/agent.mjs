// The agent of agent.py, on the official TypeScript SDK. The words of a prompt are the same.
import { spawn } from "node:child_process";
import { closeSync } from "node:fs";
import { acp, any, sleep, streamOver } from "./sdk.mjs";

const { methods, RequestError } = acp;
const AUTH_METHOD = "token";
const MODES = ["ask", "code"];
const MODELS = ["small", "large"];

const sessions = new Map();
const notes = [];
let capabilities = null;
let authenticated = false;
let hanging = "nothing";
let numbers = 0;

function sessionOf(sessionId) {
  const session = sessions.get(sessionId);
  if (!session) throw RequestError.resourceNotFound(sessionId);
  return session;
}

const modes = (session) => ({
  currentModeId: session.mode,
  availableModes: MODES.map((id) => ({ id, name: id })),
});

const options = (session) => [{
  id: "model", name: "Model", type: "select", currentValue: session.model,
  options: MODELS.map((value) => ({ value, name: value })),
}];

// A turn is stopped by session/cancel, by $/cancel_request for its prompt, or by the end of the connection: the SDK
// tells of the last two by `signal`.
const turns = {
  async stream(turn, count) {
    for (let number = 0; !count || number < Number(count); number++) {
      await turn.say(`chunk ${number}`);
      if (!count) await sleep(10, turn.signal);
      turn.signal.throwIfAborted();
    }
  },

  async tool(turn, text) {
    const argv = text ? ["echo", text] : ["sleep", "3600"];
    await turn.update({
      sessionUpdate: "tool_call", toolCallId: "call-1", title: "Run a command", kind: "execute",
      status: "in_progress", rawInput: { argv },
    });
    const child = spawn(argv[0], argv.slice(1), { env: turn.env, stdio: ["ignore", "pipe", "inherit"] });
    const stop = () => child.kill("SIGKILL");
    turn.signal.addEventListener("abort", stop, { once: true });
    let output = "";
    child.stdout.on("data", (piece) => (output += piece));
    const exitCode = await new Promise((resolve) => child.on("close", resolve));
    turn.signal.throwIfAborted();
    await turn.update({
      sessionUpdate: "tool_call_update", toolCallId: "call-1", status: "completed",
      content: [{ type: "content", content: { type: "text", text: output } }], rawOutput: { exitCode },
    });
    await turn.say("tool done");
  },

  async permission(turn, patient) {
    const answer = await turn.client.request(methods.client.session.requestPermission, {
      sessionId: turn.session.id,
      toolCall: { toolCallId: "call-2", title: "Delete everything", kind: "delete" },
      options: [
        { optionId: "yes", name: "Allow", kind: "allow_once" },
        { optionId: "no", name: "Reject", kind: "reject_once" },
      ],
    }, patient ? {} : { cancellationSignal: turn.signal });
    turn.session.told = answer.outcome;
    turn.signal.throwIfAborted();
    await turn.say(`permission ${JSON.stringify(answer.outcome)}`);
    // By the protocol this outcome means that the turn is cancelled, which the agent may be about to hear.
    return answer.outcome.outcome === "cancelled" ? "cancelled" : "end_turn";
  },

  async read(turn, path, line, limit) {
    const request = { sessionId: turn.session.id, path };
    if (line) request.line = Number(line);
    if (limit) request.limit = Number(limit);
    await turn.say((await turn.client.request(methods.client.fs.readTextFile, request)).content);
  },

  async write(turn, path, ...words) {
    await turn.client.request(methods.client.fs.writeTextFile, {
      sessionId: turn.session.id, path, content: words.join(" "),
    });
    await turn.say("written");
  },

  async terminal(turn, what) {
    const script = what === "run" ? "printf 'one two three'; exit 3" : "echo started; exec sleep 3600";
    const terminal = await turn.client.createTerminal({
      sessionId: turn.session.id, command: "sh", args: ["-c", script],
      env: [{ name: "QUIESCE_INTEROP_TURN", value: turn.session.id }],
      ...(what === "run" ? { outputByteLimit: 5 } : {}),
    });
    const where = { sessionId: turn.session.id, terminalId: terminal.id };
    let exited, output;
    // A client may not know $/cancel_request, and would go on waiting.
    turn.signal.addEventListener("abort", () => terminal.kill().catch(() => {}), { once: true });
    try {
      await turn.update({
        sessionUpdate: "tool_call", toolCallId: "call-3", title: "In a terminal", status: "in_progress",
        content: [{ type: "terminal", terminalId: terminal.id }],
      });
      if (what === "kill") {
        while (!(await terminal.currentOutput()).output.includes("started")) await sleep(10, turn.signal);
        await terminal.kill();
      }
      exited = await turn.client.request(methods.client.terminal.waitForExit, where, {
        cancellationSignal: turn.signal,
      });
      output = await terminal.currentOutput();
    } finally {
      await terminal.release();
    }
    turn.signal.throwIfAborted();
    let after = "still there";
    try {
      await terminal.currentOutput();
    } catch (error) {
      after = error.code;
    }
    await turn.say(JSON.stringify({ exited, output, after }));
  },

  async extension(turn) {
    await turn.client.notify("_interop/note", { text: "a note" });
    const answer = await turn.client.request("_interop/echo", { deep: [1, { two: null }] });
    let refused = "answered";
    try {
      await turn.client.request("_interop/unknown", {});
    } catch (error) {
      refused = error.code;
    }
    await turn.say(JSON.stringify({ answer, refused }));
  },

  async elicit(turn) {
    const answer = await turn.client.request(methods.client.elicitation.create, {
      sessionId: turn.session.id, message: "Who are you?", mode: "form",
      requestedSchema: {
        type: "object",
        properties: { name: { type: "string", title: "Name" }, sure: { type: "boolean" } },
        required: ["name"],
      },
    }, { cancellationSignal: turn.signal });
    await turn.say(JSON.stringify(answer));
  },

  async kinds(turn) {
    await turn.say(JSON.stringify(turn.prompt));
  },

  async every(turn) {
    for (const [, update] of JSON.parse(turn.prompt[1].text)) await turn.update(update);
  },

  async fail() {
    throw new RequestError(-32050, "no luck", { why: "it was asked for" });
  },

  async blow() {
    throw new TypeError("an error that nobody caught");
  },

  async exit() {
    process.exit(7);
  },

  async hangup() {
    closeSync(1);
    await new Promise(() => setInterval(() => {}, 1000));
  },
};

const app = acp.agent({ name: "interop" })
  .onRequest(methods.agent.initialize, ({ params }) => {
    capabilities = params.clientCapabilities;
    return {
      protocolVersion: acp.PROTOCOL_VERSION,
      agentCapabilities: {
        loadSession: true,
        promptCapabilities: { image: true, embeddedContext: true },
        sessionCapabilities: { list: {}, close: {}, resume: {}, delete: {} },
        auth: { logout: {} },
      },
      authMethods: [{ id: AUTH_METHOD, name: "A token" }],
      agentInfo: { name: "interop", title: "Interop agent", version: "1.0" },
    };
  })
  .onRequest(methods.agent.authenticate, ({ params }) => {
    if (params.methodId !== AUTH_METHOD) throw RequestError.invalidParams({ methodId: params.methodId });
    authenticated = true;
    return {};
  })
  .onRequest(methods.agent.logout, () => {
    authenticated = false;
  })
  .onRequest(methods.agent.session.new, ({ params }) => {
    if (!authenticated) throw RequestError.authRequired({ methods: [AUTH_METHOD] });
    const session = { id: `session-${++numbers}`, cwd: params.cwd, mode: MODES[0], model: MODELS[0], said: [], turn: "none", told: null };
    sessions.set(session.id, session);
    return { sessionId: session.id, modes: modes(session), configOptions: options(session) };
  })
  .onRequest(methods.agent.session.load, async ({ params, client }) => {
    const session = sessionOf(params.sessionId);
    for (const [who, text] of session.said) {
      await client.notify(methods.client.session.update, {
        sessionId: session.id,
        update: { sessionUpdate: `${who}_message_chunk`, content: { type: "text", text } },
      });
    }
    return { modes: modes(session), configOptions: options(session) };
  })
  .onRequest(methods.agent.session.resume, ({ params }) => {
    const session = sessionOf(params.sessionId);
    return { modes: modes(session), configOptions: options(session) };
  })
  .onRequest(methods.agent.session.list, ({ params }) => ({
    sessions: [...sessions.values()]
      .filter(({ cwd }) => !params.cwd || cwd === params.cwd)
      .map(({ id, cwd }) => ({ sessionId: id, cwd, title: `Session ${id}` })),
  }))
  .onRequest(methods.agent.session.close, ({ params }) => {
    sessions.get(params.sessionId)?.stop?.abort();
    sessions.delete(params.sessionId);
    return {};
  })
  .onRequest(methods.agent.session.delete, ({ params }) => {
    sessions.get(params.sessionId)?.stop?.abort();
    sessions.delete(params.sessionId);
  })
  .onRequest(methods.agent.session.setMode, async ({ params, client }) => {
    const session = sessionOf(params.sessionId);
    if (!MODES.includes(params.modeId)) throw RequestError.invalidParams({ modeId: params.modeId });
    session.mode = params.modeId;
    await client.notify(methods.client.session.update, {
      sessionId: session.id, update: { sessionUpdate: "current_mode_update", currentModeId: params.modeId },
    });
    return {};
  })
  .onRequest(methods.agent.session.setConfigOption, ({ params }) => {
    const session = sessionOf(params.sessionId);
    if (params.configId !== "model" || !MODELS.includes(params.value)) {
      throw RequestError.invalidParams({ [params.configId]: params.value });
    }
    session.model = params.value;
    return { configOptions: options(session) };
  })
  .onRequest(methods.agent.session.prompt, async ({ params, client, signal }) => {
    const session = sessionOf(params.sessionId);
    session.stop = new AbortController();
    session.turn = "running";
    const text = params.prompt[0].text;
    session.said.push(["user", text]);
    const turn = {
      client, session, prompt: params.prompt,
      signal: AbortSignal.any([signal, session.stop.signal]),
      env: { ...process.env, QUIESCE_INTEROP_TURN: session.id },
      update: (update) => client.notify(methods.client.session.update, { sessionId: session.id, update }),
      say(said) {
        session.said.push(["agent", said]);
        return turn.update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text: said } });
      },
    };
    const [word, ...words] = text.split(" ");
    let stopReason;
    try {
      stopReason = (await turns[word](turn, ...words)) ?? "end_turn";
    } catch (error) {
      session.turn = turn.signal.aborted ? "cancelled" : "failed";
      if (!turn.signal.aborted) throw error;
      return { stopReason: "cancelled" };
    } finally {
      session.stop = null;
    }
    session.turn = stopReason === "cancelled" ? "cancelled" : "finished";
    return { stopReason };
  })
  .onNotification(methods.agent.session.cancel, ({ params }) => {
    sessions.get(params.sessionId)?.stop?.abort();
  })
  .onRequest("_interop/state", any, () => ({
    turns: Object.fromEntries([...sessions.values()].map(({ id, turn }) => [id, turn])),
    told: Object.fromEntries([...sessions.values()].map(({ id, told }) => [id, told])),
    capabilities, notes, hanging,
  }))
  .onRequest("_interop/hang", any, ({ params, signal }) => new Promise((_, reject) => {
    hanging = params.name;
    signal.addEventListener("abort", () => {
      hanging = `${params.name}, cancelled`;
      reject(RequestError.requestCancelled());
    }, { once: true });
  }))
  .onNotification("_interop/note", any, ({ params }) => {
    notes.push({ method: "interop/note", params });
  });

const connection = app.connect(streamOver(process.stdout, process.stdin));
await connection.closed;
