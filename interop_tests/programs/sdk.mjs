// The official TypeScript SDK, from wherever scripts/test-interop has installed it, and what both programs need.
import { createRequire } from "node:module";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const installed = process.env.QUIESCE_INTEROP_NODE;
if (!installed) throw new Error("QUIESCE_INTEROP_NODE is not set: run these programs by `make test-interop`");
const require = createRequire(join(installed, "package.json"));

export const acp = await import(pathToFileURL(require.resolve("@agentclientprotocol/sdk")).href);
export const any = { parse: (params) => params };

export function streamOver(output, input) {
  return acp.ndJsonStream(Writable.toWeb(output), Readable.toWeb(input));
}

export async function webSocketTo(address) {
  const path = require.resolve("@agentclientprotocol/sdk/experimental/ws-client");
  const { createWebSocketStream } = await import(pathToFileURL(path).href);
  // The WebSocket of Node is that of browsers: it sends no headers of ours.
  return createWebSocketStream(address, { protocols: [`quiesce.token.${process.env.QUIESCE_ACP_TOKEN}`] });
}

export function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}
