// What the console does, each as one call that can be made and can be written
// down in every form: for the command line, curl, MCP and the Go client. What
// is copied is what was sent.
import type { Schemas } from "../api/client";
import { type Call, compact, each, flags, goLiteral, goString, quote } from "./call";
import { serverCalls } from "./servercalls";

const e = encodeURIComponent;
const W = "sandboxes:write";
const at = (id: string, rest = "") => `/v1/sandboxes/${e(id)}${rest}`;
type S = Schemas;

/** seconds writes a time as the command line takes it. */
const seconds = (n: number | undefined | null) => (n == null ? undefined : `${n}s`);

export const calls = {
  ...serverCalls,
  create(req: S["CreateRequest"]): Call<S["Sandbox"]> {
    const b = compact(req);
    const r = b.resources;
    return {
      title: "Create a sandbox",
      scope: W,
      method: "POST",
      path: "/v1/sandboxes",
      body: b,
      cli: `cove create${flags([
        ["--name", b.name],
        ["--template", b.template],
        ["--snapshot", b.snapshot],
        ["--vcpus", r?.vcpus],
        ["--memory", r?.memory_mib && `${r.memory_mib}m`],
        ["--disk", r?.disk_mib && `${r.disk_mib}m`],
        ["--pids", r?.max_pids],
        ["--network", b.network?.preset],
        ["--history", b.history],
        ["--lifetime", seconds(b.lifetime_seconds)],
        ["--idle-timeout", seconds(b.idle_timeout_seconds)],
        ["--on-timeout", b.on_timeout],
        ["--user", b.user],
        ["--workdir", b.workdir],
      ])}${each("-e", b.env)}${each("-m", b.metadata)}`,
      mcp: { tool: "sandbox_create", arguments: compact({ ...b, resources: undefined, ...r }) },
      go: `sb, err := c.Create(ctx, sandbox.CreateRequest{${goLiteral(b, "times")}})`,
    };
  },
  fork(id: string, req: S["ForkRequest"]): Call<S["ListSandbox"]> {
    const b = compact(req);
    return {
      title: "Fork",
      scope: W,
      method: "POST",
      path: at(id, "/fork"),
      body: b,
      cli: `cove fork ${quote(id)}${flags([
        ["-n", b.count !== 1 && b.count],
        ["--name", b.name],
        ["--lifetime", seconds(b.lifetime_seconds)],
        ["--idle-timeout", seconds(b.idle_timeout_seconds)],
      ])}${each("-e", b.env)}${each("-m", b.metadata)}`,
      mcp: { tool: "sandbox_fork", arguments: { sandbox: id, ...b } },
      go: `children, err := c.Fork(ctx, ${goString(id)}, sandbox.ForkRequest{${goLiteral(b, "times")}})`,
    };
  },
  snapshot(id: string, req: S["CreateSnapshotRequest"]): Call<S["Snapshot"]> {
    const b = compact(req);
    return {
      title: "Snapshot",
      scope: W,
      method: "POST",
      path: at(id, "/snapshots"),
      body: b,
      cli: `cove snapshot create ${quote(id)}${flags([
        ["--name", b.name],
        ["--files-only", b.kind === "files"],
        ["--label", b.label],
      ])}`,
      mcp: { tool: "snapshot_create", arguments: { sandbox: id, ...b } },
      go: `snapshot, err := c.CreateSnapshot(ctx, ${goString(id)}, sandbox.CreateSnapshotRequest{${goLiteral(b)}})`,
    };
  },
  deleteSnapshot(id: string): Call<S["Snapshot"]> {
    return {
      title: "Delete a snapshot",
      scope: W,
      method: "DELETE",
      path: `/v1/snapshots/${e(id)}`,
      cli: `cove snapshot rm ${quote(id)}`,
      mcp: { tool: "snapshot_delete", arguments: { snapshot: id } },
      go: `_, err := c.DeleteSnapshot(ctx, ${goString(id)})`,
    };
  },
  restore(id: string, req: S["RestoreRequest"]): Call<S["Sandbox"]> {
    const b = compact(req);
    return {
      title: "Restore",
      scope: W,
      method: "POST",
      path: at(id, "/restore"),
      body: b,
      cli: `cove snapshot restore ${quote(id)} ${b.snapshot ? quote(b.snapshot) : `--step ${b.step}`}`,
      mcp: { tool: "snapshot_restore", arguments: { sandbox: id, ...b } },
      go: `sb, err := c.RestoreSnapshot(ctx, ${goString(id)}, sandbox.RestoreRequest{${goLiteral(b)}})`,
    };
  },
  pause(id: string): Call<S["Sandbox"]> {
    return {
      title: "Pause",
      scope: W,
      method: "POST",
      path: at(id, "/pause"),
      cli: `cove pause ${quote(id)}`,
      mcp: { tool: "sandbox_pause", arguments: { sandbox: id } },
      go: `sb, err := c.Pause(ctx, ${goString(id)})`,
    };
  },
  resume(id: string): Call<S["Sandbox"]> {
    return {
      title: "Resume",
      scope: W,
      method: "POST",
      path: at(id, "/resume"),
      cli: `cove resume ${quote(id)}`,
      mcp: { tool: "sandbox_resume", arguments: { sandbox: id } },
      go: `sb, err := c.Resume(ctx, ${goString(id)}, sandbox.ResumeRequest{})`,
    };
  },
  kill(id: string): Call<S["Sandbox"]> {
    return {
      title: "Kill",
      scope: W,
      method: "DELETE",
      path: at(id),
      cli: `cove kill ${quote(id)}`,
      mcp: { tool: "sandbox_kill", arguments: { sandbox: id } },
      go: `_, err := c.Kill(ctx, ${goString(id)})`,
    };
  },
  update(id: string, req: S["UpdateRequest"]): Call<S["Sandbox"]> {
    return {
      title: "Change settings",
      scope: W,
      method: "PATCH",
      path: at(id),
      body: req,
      cli: `cove update ${quote(id)}${req.name == null ? "" : ` --name ${quote(req.name)}`}${flags([
        ["--vcpus", req.vcpus],
        ["--memory", req.memory_mib && `${req.memory_mib}m`],
        ["--pids", req.max_pids],
        ["--lifetime", seconds(req.lifetime_seconds)],
        ["--idle-timeout", seconds(req.idle_timeout_seconds)],
        ["--on-timeout", req.on_timeout],
        ["--history", req.history],
      ])}${req.metadata && !Object.keys(req.metadata).length ? " --clear-metadata" : each("-m", req.metadata)}`,
      mcp: { tool: "sandbox_update", arguments: { sandbox: id, ...req } },
      go: `sb, err := c.Update(ctx, ${goString(id)}, sandbox.UpdateRequest{${goLiteral(req, "update")}})`,
    };
  },
  diff(subject: string, req: S["DiffRequest"]): Call<S["Diff"]> {
    const b = compact(req);
    return {
      title: "Compare files",
      scope: "sandboxes:read",
      method: "POST",
      path: `/v1/diff/${e(subject)}`,
      body: b,
      cli: `cove diff ${quote(subject)}${b.against ? ` ${quote(b.against)}` : ""}${flags([["--patch", b.patch]])}`,
      mcp: { tool: "sandbox_diff", arguments: { sandbox: subject, ...b } },
      go: `diff, err := c.Diff(ctx, ${goString(subject)}, sandbox.DiffRequest{${goLiteral(b)}})`,
    };
  },
  merge(id: string, req: S["MergeRequest"]): Call<S["MergeResult"]> {
    const b = compact(req);
    return {
      title: "Merge",
      scope: W,
      method: "POST",
      path: at(id, "/merge"),
      body: b,
      cli: `cove merge ${quote(id)} ${quote(b.winner ?? "")}${flags([
        ["--files", b.kind === "files"],
        ["--policy", b.policy],
        ["--kill-winner", b.kill_winner],
      ])}${Object.entries(b.resolve ?? {})
        .map(([p, side]) => ` --${side} ${quote(p)}`)
        .join("")}${(b.paths ?? []).map((p) => ` --path ${quote(p)}`).join("")}`,
      mcp: { tool: "sandbox_merge", arguments: { sandbox: id, ...b } },
      go: `merge, err := c.Merge(ctx, ${goString(id)}, sandbox.MergeRequest{${goLiteral(b)}})`,
    };
  },
  try(id: string, req: S["TryRequest"]): Call<S["TryResult"]> {
    const b = compact(req);
    const shells = (b.commands ?? []).map((c) => c.shell ?? "");
    return {
      title: "Try in forks",
      scope: W,
      method: "POST",
      path: at(id, "/try"),
      body: b,
      cli: `cove try ${quote(id)}${flags([
        ["-n", b.count],
        ["--pick", b.pick],
        ["--keep", b.keep],
      ])}${shells.map((s) => ` -c ${quote(s)}`).join("")}`,
      mcp: { tool: "sandbox_try", arguments: { sandbox: id, ...b, commands: shells } },
      go: `res, err := c.Try(ctx, ${goString(id)}, sandbox.TryRequest{${goLiteral(b)}}, nil)`,
    };
  },
  exec(id: string, req: S["ExecRequest"]): Call<S["Job"]> {
    const b = compact(req);
    return {
      title: "Run a command",
      scope: W,
      method: "POST",
      path: at(id, "/exec"),
      body: b,
      cli: `cove exec${flags([
        ["-d", b.background],
        ["--timeout", b.timeout_ms && `${b.timeout_ms}ms`],
      ])} ${b.shell ? `-s ${quote(id)} ${quote(b.shell)}` : `${quote(id)} -- ${(b.command ?? []).map(quote).join(" ")}`}`,
      mcp: { tool: "sandbox_exec", arguments: { sandbox: id, ...b } },
      go: `job, err := c.Exec(ctx, ${goString(id)}, sandbox.ExecRequest{${goLiteral(b)}}, nil)`,
    };
  },
  terminal(id: string, req: S["ExecRequest"]): Call<{ job: S["Job"] }> {
    const { background, ...rest } = compact(req);
    return {
      title: "Open a terminal",
      scope: W,
      method: "POST",
      path: at(id, "/exec"),
      body: { ...rest, background },
      cli: `cove exec -it${each("-e", rest.env)} -s ${quote(id)} ${quote(rest.shell ?? "")}`,
      go: `terminal, err := c.OpenTerminal(ctx, ${goString(id)}, sandbox.ExecRequest{${goLiteral(rest)}})`,
    };
  },
  interruptContext(id: string, language: string, context: string): Call<S["CodeContext"]> {
    return contextCall("interrupt", "Interrupt an interpreter", id, language, context);
  },
  restartContext(id: string, language: string, context: string): Call<S["CodeContext"]> {
    return contextCall("restart", "Restart an interpreter", id, language, context);
  },
  viewComputer(id: string, control: boolean): Call<S["ViewLink"]> {
    return {
      title: "Open the live view",
      scope: "computers:write",
      method: "POST",
      path: at(id, "/computer/view"),
      body: { control },
      cli: `cove computer view ${quote(id)}${flags([["--control", control]])}`,
      mcp: { tool: "computer_view", arguments: { sandbox: id, control } },
      go: `view, err := c.ViewComputer(ctx, ${goString(id)}, sandbox.ViewRequest{${goLiteral({ control })}})`,
    };
  },
  code(id: string, req: S["RunCodeRequest"]): Call<S["CodeResult"]> {
    const b = compact(req);
    return {
      title: "Run code",
      scope: W,
      method: "POST",
      path: at(id, "/code"),
      body: b,
      cli: `cove code ${quote(id)}${flags([
        ["-l", b.language],
        ["--context", b.context],
      ])} -c ${quote(b.code ?? "")}`,
      mcp: { tool: "run_code", arguments: { sandbox: id, ...b } },
      go: `result, err := c.RunCode(ctx, ${goString(id)}, sandbox.RunCodeRequest{${goLiteral(b)}}, nil)`,
    };
  },
  signalJob(id: string, job: string, signal: string): Call<S["Job"]> {
    return {
      title: `Send ${signal} to a job`,
      scope: W,
      method: "POST",
      path: at(id, `/jobs/${e(job)}/signal`),
      body: { signal },
      cli: `cove job stop ${quote(id)} ${quote(job)} --signal ${quote(signal)} --grace 0s`,
      mcp: { tool: "job_stop", arguments: { sandbox: id, job_id: job, signal, kill_after_ms: 0 } },
      go: `_, err := c.SignalJob(ctx, ${goString(id)}, ${goString(job)}, ${goString(signal)}, 0)`,
    };
  },
  signalProcess(id: string, pid: number, signal: string): Call {
    return {
      title: `Send ${signal} to a process`,
      scope: W,
      method: "POST",
      path: at(id, `/processes/${pid}/signal`),
      body: { signal },
      cli: `cove ps --kill ${pid} -s ${signal} ${quote(id)}`,
      mcp: { tool: "process_kill", arguments: { sandbox: id, pid, signal } },
      go: `err := c.SignalProcess(ctx, ${goString(id)}, ${pid}, ${goString(signal)})`,
    };
  },
  setNetwork(id: string, policy: S["NetworkPolicy"]): Call<S["NetworkPolicy"]> {
    return {
      title: "Set the network policy",
      scope: W,
      method: "POST",
      path: at(id, "/network"),
      body: policy,
      cli: `printf %s ${quote(JSON.stringify(policy))} | cove egress set ${quote(id)} --file -`,
      mcp: { tool: "network_set", arguments: { sandbox: id, ...policy } },
      go: `policy, err := c.SetNetwork(ctx, ${goString(id)}, sandbox.NetworkPolicy{${goLiteral(policy as Record<string, unknown>)}})`,
    };
  },
  createPreview(id: string, req: S["CreatePreviewRequest"]): Call<S["NewPreview"]> {
    return {
      title: "Create a preview",
      scope: W,
      method: "POST",
      path: at(id, "/previews"),
      body: req,
      cli: `cove preview create ${quote(id)} ${req.port}${flags([
        ["--public", req.access === "public"],
        ["--wake", req.wake],
      ])}`,
      mcp: { tool: "preview_create", arguments: { sandbox: id, ...req } },
      go: `preview, err := c.CreatePreview(ctx, ${goString(id)}, sandbox.CreatePreviewRequest{${goLiteral(req)}})`,
    };
  },
  linkPreview(id: string, port: number): Call<S["PreviewLink"]> {
    return {
      title: "Sign a link to a preview",
      scope: W,
      method: "POST",
      path: at(id, `/previews/${port}/link`),
      body: {},
      cli: `cove preview link ${quote(id)} ${port}`,
      mcp: { tool: "preview_link", arguments: { sandbox: id, port } },
      go: `link, err := c.LinkPreview(ctx, ${goString(id)}, ${port}, sandbox.PreviewLinkRequest{})`,
    };
  },
  deletePreview(id: string, port: number): Call {
    return {
      title: "End a preview",
      scope: W,
      method: "DELETE",
      path: at(id, `/previews/${port}`),
      cli: `cove preview rm ${quote(id)} ${port}`,
      mcp: { tool: "preview_delete", arguments: { sandbox: id, port } },
      go: `err := c.DeletePreview(ctx, ${goString(id)}, ${port})`,
    };
  },
  writeFile(id: string, path: string, content: Blob, text?: string): Call<S["FileInfo"]> {
    return {
      title: "Write a file",
      scope: "files:write",
      method: "PUT",
      path: at(id, `/files/content?path=${e(path)}&make_parents=true`),
      body: content,
      cli: `cove cp FILE ${quote(`${id}:${path}`)}`,
      mcp:
        text !== undefined && text.length < 20_000
          ? { tool: "file_write", arguments: { sandbox: id, path, content: text } }
          : undefined,
      go: `_, err := c.WriteFile(ctx, ${goString(id)}, sandbox.WriteFileRequest{Path: ${goString(path)}, MakeParents: true}, file)`,
    };
  },
  makeDir(id: string, path: string): Call<S["FileInfo"]> {
    return {
      title: "Make a directory",
      scope: "files:write",
      method: "POST",
      path: at(id, "/files/mkdir"),
      body: { path },
      cli: `cove exec ${quote(id)} -- mkdir -p ${quote(path)}`,
      go: `_, err := c.MakeDir(ctx, ${goString(id)}, sandbox.MakeDirRequest{Path: ${goString(path)}})`,
    };
  },
  moveFile(id: string, from: string, to: string): Call<S["FileInfo"]> {
    return {
      title: "Rename a file",
      scope: "files:write",
      method: "POST",
      path: at(id, "/files/move"),
      body: { from, to },
      cli: `cove exec ${quote(id)} -- mv ${quote(from)} ${quote(to)}`,
      mcp: { tool: "file_move", arguments: { sandbox: id, from, to } },
      go: `_, err := c.MoveFile(ctx, ${goString(id)}, sandbox.MoveFileRequest{From: ${goString(from)}, To: ${goString(to)}})`,
    };
  },
  deleteFile(id: string, path: string, recursive: boolean): Call {
    return {
      title: "Delete a file",
      scope: "files:write",
      method: "DELETE",
      path: at(id, `/files?path=${e(path)}${recursive ? "&recursive=true" : ""}`),
      cli: `cove exec ${quote(id)} -- rm ${recursive ? "-r " : ""}${quote(path)}`,
      mcp: { tool: "file_delete", arguments: compact({ sandbox: id, path, recursive: recursive || undefined }) },
      go: `err := c.DeleteFile(ctx, ${goString(id)}, ${goString(path)}, ${recursive})`,
    };
  },
  attachSecret(id: string, secret: string, env: string): Call<S["Sandbox"]> {
    return {
      title: "Attach a secret",
      scope: W,
      method: "POST",
      path: at(id, "/secrets"),
      body: { secret, env },
      cli: `cove secret attach ${quote(id)} ${quote(env)}=${quote(secret)}`,
      mcp: { tool: "secret_attach", arguments: { sandbox: id, secret, env } },
      go: `sb, err := c.AttachSecret(ctx, ${goString(id)}, ${goString(secret)}, ${goString(env)})`,
    };
  },
  detachSecret(id: string, env: string): Call<S["Sandbox"]> {
    return {
      title: "Detach a secret",
      scope: W,
      method: "DELETE",
      path: at(id, `/secrets/${e(env)}`),
      cli: `cove secret detach ${quote(id)} ${quote(env)}`,
      mcp: { tool: "secret_detach", arguments: { sandbox: id, env } },
      go: `sb, err := c.DetachSecret(ctx, ${goString(id)}, ${goString(env)})`,
    };
  },
  answerApproval(id: string, req: S["AnswerApprovalRequest"]): Call<S["Approval"]> {
    const b = compact(req);
    const held = b.scope === "duration" ? `${b.seconds}s` : b.scope === "sandbox" ? "sandbox" : undefined;
    return {
      title: b.allow ? "Allow what is asked" : "Refuse what is asked",
      scope: W,
      method: "POST",
      path: `/v1/approvals/${e(id)}`,
      body: b,
      cli: `cove approvals ${b.allow ? "allow" : "deny"} ${quote(id)}${flags([["--for", held]])}`,
      go: `answered, err := c.AnswerApproval(ctx, ${goString(id)}, sandbox.AnswerApprovalRequest{${goLiteral(b)}})`,
    };
  },
};

/** contextCall does something with a running interpreter; the command line has no word for it. */
function contextCall(action: string, title: string, id: string, language: string, context: string): Call<S["CodeContext"]> {
  const verb = action === "restart" ? "RestartContext" : "InterruptContext";
  return {
    title,
    scope: W,
    method: "POST",
    path: at(id, `/contexts/${e(language)}/${e(context)}/${action}`),
    mcp: { tool: "code_context", arguments: { sandbox: id, action, language, context } },
    go: `_, err := c.${verb}(ctx, ${goString(id)}, sandbox.ContextRef{Language: ${goString(language)}, Name: ${goString(context)}})`,
  };
}
