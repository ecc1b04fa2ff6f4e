// What the tests talk to, and how they reach it.
//
// COVE_MCP_URL      URL of a server over HTTP, such as http://127.0.0.1:7777/mcp
// COVE_API_KEY      key for it, if it wants one
// COVE_MCP_COMMAND  a server over stdio: a JSON array, program and arguments;
//                   COVE_BIN is short for ["<COVE_BIN>", "mcp"]
// COVE_MCP_TOOLS    names of tools that must be offered, with commas between
import assert from 'node:assert/strict';
import { Client as ClientV1 } from '@modelcontextprotocol/sdk/client/index.js';
import { ResourceListChangedNotificationSchema, ResourceUpdatedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import { StdioClientTransport as StdioV1 } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as HTTPV1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { Client as ClientV2, StreamableHTTPClientTransport as HTTPV2 } from '@modelcontextprotocol/client';
import { StdioClientTransport as StdioV2 } from '@modelcontextprotocol/client/stdio';

export const url = process.env.COVE_MCP_URL ?? '';
export const key = process.env.COVE_API_KEY ?? '';
export const tools = process.env.COVE_MCP_TOOLS ? process.env.COVE_MCP_TOOLS.split(',') : [];
export const command = process.env.COVE_MCP_COMMAND
  ? JSON.parse(process.env.COVE_MCP_COMMAND)
  : process.env.COVE_BIN
    ? [process.env.COVE_BIN, 'mcp']
    : null;

const info = { name: 'cove-test', version: '1.0.0' };
const headers = key ? { Authorization: `Bearer ${key}` } : {};

function http(Transport) {
  return () => new Transport(new URL(url), { requestInit: { headers } });
}

function stdio(Transport) {
  return () => new Transport({ command: command[0], args: command.slice(1), env: { ...process.env }, stderr: 'inherit' });
}

const modern = { versionNegotiation: { mode: { pin: '2026-07-28' } } };

// Each way to reach the server: both clients, both doors, both eras.
export const ways = [
  ...(url
    ? [
        { name: 'SDK 1, HTTP, sessions', legacy: true, make: () => [new ClientV1(info), http(HTTPV1)()] },
        { name: 'SDK 2, HTTP, sessions', make: () => [new ClientV2(info), http(HTTPV2)()] },
        { name: 'SDK 2, HTTP, stateless', make: () => [new ClientV2(info, modern), http(HTTPV2)()] },
      ]
    : []),
  ...(command
    ? [
        { name: 'SDK 1, stdio', legacy: true, make: () => [new ClientV1(info), stdio(StdioV1)()] },
        { name: 'SDK 2, stdio, auto', make: () => [new ClientV2(info, { versionNegotiation: { mode: 'auto' } }), stdio(StdioV2)()] },
      ]
    : []),
];
assert.ok(ways.length > 0, 'set COVE_MCP_URL, COVE_MCP_COMMAND or COVE_BIN');

// What SDK 1 wants in place of the name of a notification.
const schemas = {
  'notifications/resources/updated': ResourceUpdatedNotificationSchema,
  'notifications/resources/list_changed': ResourceListChangedNotificationSchema,
};

// connect returns a connected client with call(tool, args, options), which
// works with both versions of the SDK and fails on a tool's error; and with
// onNotification(method, handler) and subscribe(uri), which returns what ends it.
export async function connect(way) {
  const [client, transport] = way.make();
  await client.connect(transport);
  await client.listTools(); // the SDK checks results against these schemas
  const raw = (name, args = {}, options = {}) =>
    way.legacy ? client.callTool({ name, arguments: args }, undefined, options) : client.callTool({ name, arguments: args }, options);
  const call = async (name, args, options) => {
    const result = await raw(name, args, options);
    assert.ok(!result.isError, `${name}: ${result.content?.[0]?.text}`);
    return result.structuredContent;
  };
  const onNotification = (method, handler) => client.setNotificationHandler(way.legacy ? schemas[method] : method, handler);
  const subscribe = async (uri) => {
    if (!way.legacy && client.getNegotiatedProtocolVersion() >= '2026-07-28') {
      const listening = await client.listen({ resourceSubscriptions: [uri], resourcesListChanged: true });
      return () => listening.close();
    }
    await client.subscribeResource({ uri });
    return () => client.unsubscribeResource({ uri });
  };
  return { client, raw, call, onNotification, subscribe, close: () => client.close() };
}
