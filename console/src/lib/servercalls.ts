// Calls about what is the team's or the server's, not one sandbox's: secrets, keys, sessions of
// browsers, builds and orphans. See calls.
import type { Schemas } from "../api/client";
import { type Call, compact, flags, goLiteral, goString, quote } from "./call";

const e = encodeURIComponent;
type S = Schemas;

export const serverCalls = {
  createSecret(req: S["CreateSecretRequest"]): Call<S["Secret"]> {
    const b = compact(req);
    return {
      title: "Create a secret",
      scope: "secrets:write",
      method: "POST",
      path: "/v1/secrets",
      body: b,
      private: ["value"],
      cli: `cove secret create ${quote(b.name ?? "")}${flags([["--provider", b.provider]])}${(b.hosts ?? []).map((h) => ` --host ${quote(h)}`).join("")} < FILE`,
      go: `secret, err := c.CreateSecret(ctx, sandbox.CreateSecretRequest{${goLiteral(b)}})`,
    };
  },
  rotateSecret(name: string, value: string): Call<S["Secret"]> {
    return {
      title: "Rotate a secret",
      scope: "secrets:write",
      method: "POST",
      path: `/v1/secrets/${e(name)}/rotate`,
      body: { value },
      private: ["value"],
      cli: `cove secret rotate ${quote(name)} < FILE`,
      go: `secret, err := c.RotateSecret(ctx, ${goString(name)}, sandbox.RotateSecretRequest{${goLiteral({ value })}})`,
    };
  },
  deleteSecret(secret: string): Call {
    return {
      title: "Delete a secret",
      scope: "secrets:write",
      method: "DELETE",
      path: `/v1/secrets/${e(secret)}`,
      cli: `cove secret rm ${quote(secret)}`,
      go: `err := c.DeleteSecret(ctx, ${goString(secret)})`,
    };
  },
  createKey(req: S["CreateKeyRequest"]): Call<S["NewKey"]> {
    const b = compact(req);
    return {
      title: "Create a key",
      scope: "admin",
      method: "POST",
      path: "/v1/keys",
      body: b,
      cli: `cove key create ${quote(b.name ?? "")}${flags([
        ["--team", b.team],
        ["--expires", b.expires_in_seconds && `${b.expires_in_seconds}s`],
        ["--scope", b.scopes?.join(",")],
      ])}`,
      go: `key, err := c.CreateKey(ctx, sandbox.CreateKeyRequest{${goLiteral(b)}})`,
    };
  },
  revokeKey(key: string): Call<S["Key"]> {
    return {
      title: "Revoke a key",
      scope: "admin",
      method: "DELETE",
      path: `/v1/keys/${e(key)}`,
      cli: `cove key revoke ${quote(key)}`,
      go: `_, err := c.RevokeKey(ctx, ${goString(key)})`,
    };
  },
  /** Sessions of browsers are the console's own: nothing but a browser has them. */
  endSession(session: string): Call {
    return {
      title: "End a browser's session",
      scope: "",
      method: "DELETE",
      path: `/console/sessions/${e(session)}`,
    };
  },
  startBuild(req: S["BuildTemplateRequest"]): Call<S["Build"]> {
    const file = req.spec && JSON.stringify(templateFile(req.spec));
    return {
      title: "Build a template",
      scope: "templates:write",
      method: "POST",
      path: "/v1/builds",
      body: req,
      private: ["password"],
      cli: `${file ? `printf %s ${quote(file)} | ` : ""}cove template build ${quote(req.name ?? "")}${flags([
        ["--file", file && "-"],
        ["--force", req.force],
        ["--detach", true],
      ])}`,
      mcp: buildTool(req),
      go: `var req sandbox.BuildTemplateRequest
err := json.Unmarshal([]byte(${goString(JSON.stringify(req))}), &req)
if err == nil {
	_, err = c.StartBuild(ctx, req)
}`,
    };
  },
  cancelBuild(build: string): Call<S["Build"]> {
    return {
      title: "Cancel a build",
      scope: "templates:write",
      method: "POST",
      path: `/v1/builds/${e(build)}/cancel`,
      cli: `cove template cancel ${quote(build)}`,
      go: `build, err := c.CancelBuild(ctx, ${goString(build)})`,
    };
  },
  deleteTemplate(name: string): Call {
    return {
      title: "Delete a template",
      scope: "templates:write",
      method: "DELETE",
      path: `/v1/templates/${e(name)}`,
      cli: `cove template rm ${quote(name)}`,
      mcp: { tool: "template_delete", arguments: { name } },
      go: `err := c.DeleteTemplate(ctx, ${goString(name)})`,
    };
  },
  createVolume(req: S["CreateVolumeRequest"]): Call<S["Volume"]> {
    const b = compact(req);
    return {
      title: "Create a volume",
      scope: "sandboxes:write",
      method: "POST",
      path: "/v1/volumes",
      body: b,
      cli: `cove volume create ${quote(b.name ?? "")}${flags([["--size", b.size_mib && `${b.size_mib}m`]])}`,
      mcp: { tool: "volume_create", arguments: { ...b } },
      go: `volume, err := c.CreateVolume(ctx, sandbox.CreateVolumeRequest{${goLiteral(b)}})`,
    };
  },
  deleteVolume(id: string): Call {
    return {
      title: "Delete a volume",
      scope: "sandboxes:write",
      method: "DELETE",
      path: `/v1/volumes/${e(id)}`,
      cli: `cove volume rm ${quote(id)}`,
      mcp: { tool: "volume_delete", arguments: { volume: id } },
      go: `err := c.DeleteVolume(ctx, ${goString(id)})`,
    };
  },
  recoverOrphan(id: string): Call<S["Recovered"]> {
    return {
      title: "Recover",
      scope: "admin",
      method: "POST",
      path: `/v1/orphans/${e(id)}/recover`,
      cli: `cove recover ${quote(id)}`,
      go: `recovered, err := c.RecoverOrphan(ctx, ${goString(id)})`,
    };
  },
};

/** templateFile is a specification as a template file has it, in which the content of files is text. */
function templateFile(spec: S["TemplateSpec"]) {
  const text = (content: string) => new TextDecoder().decode(Uint8Array.from(atob(content), (c) => c.charCodeAt(0)));
  return {
    ...spec,
    files: spec.files?.map((f) => (f.content === undefined ? f : { ...f, content: text(String(f.content)) })),
  };
}

/** buildTool is the call of the tool that builds, which knows less than a template file: its commands have nothing
 * beside them, and its network is a preset. */
function buildTool(req: S["BuildTemplateRequest"]): Call["mcp"] {
  const { resources, network, build_network, run, ...rest } = templateFile(req.spec ?? {});
  const alone = (o: object | undefined, name: string) => !o || Object.keys(compact(o)).every((k) => k === name);
  const known = alone(network, "preset") && alone(build_network, "preset") && (run ?? []).every((step) => alone(step, "run"));
  if (!known || req.registry_login) return undefined;
  return {
    tool: "template_build",
    arguments: compact({
      name: req.name,
      force: req.force,
      ...rest,
      ...resources,
      run: run?.map((step) => step.run),
      network: network?.preset,
      build_network: build_network?.preset,
    }),
  };
}
