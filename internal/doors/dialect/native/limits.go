package native

import (
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sh/cove/sandbox"
)

// leftOut are members of the domain's types that tools do not have, by
// "Type.member", with the reason.
var leftOut = map[string]string{
	"CreateRequest.namespace":     "the client's configuration says it",
	"ListRequest.namespace":       "the client's configuration says it",
	"StatsRequest.namespace":      "the client's configuration says it",
	"snapshotView.namespace":      "it is the same for all that a client sees",
	"ExecRequest.open_stdin":      "input goes over a connection of its own, which the REST API has",
	"ExecRequest.terminal":        "a terminal needs a connection of its own, which the REST API has",
	"ExecRequest.detach_after_ms": "the server decides how long a call may last",
	"ExecRequest.tag":             "models find jobs by their ids",
	"ExecRequest.keep_bytes":      "results are bounded, and job_get reads the rest",
	"ExecRequest.code":            "run_code has it",
	"RunCodeRequest.keep_bytes":   "results are bounded",
	"Webhook.headers":             "models have no use for it",
	"Webhook.format":              "it is for another product's clients",
	"TemplateSpec.resources":      "they are arguments of their own",
}

// limit restricts the values of a schema of one type.
type limit struct {
	of    string // the type
	apply func(*jsonschema.Schema)
}

func between(low, high int64) limit {
	return limit{"integer", func(s *jsonschema.Schema) {
		lo, hi := float64(low), float64(high)
		s.Minimum, s.Maximum = &lo, &hi
	}}
}

// length bounds the characters of a text; 0 is no bound.
func length(low, high int) limit {
	return limit{"string", func(s *jsonschema.Schema) { s.MinLength, s.MaxLength = bound(low), bound(high) }}
}

func oneOf(values ...any) limit {
	return limit{"string", func(s *jsonschema.Schema) { s.Enum = values }}
}

// items bounds the length of a list, and each of its items if given; 0 is no bound.
func items(low, high int, each ...limit) limit {
	return limit{"array", func(s *jsonschema.Schema) {
		s.MinItems, s.MaxItems = bound(low), bound(high)
		for _, l := range each {
			l.apply(s.Items)
		}
	}}
}

// pairs bounds the number of pairs in a map of strings, and the length of a value.
func pairs(most, value int) limit {
	return limit{"object", func(s *jsonschema.Schema) {
		s.MaxProperties, s.AdditionalProperties.MaxLength = bound(most), bound(value)
	}}
}

func bound(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

const (
	maxLifetimeSeconds = int64(sandbox.MaxLifetime / time.Second)
	maxOffset          = 1 << 53
	maxArgument        = 128 << 10 // of a command line or of one of its arguments
	maxTarget          = 280       // of a domain, an address or the name of a sandbox in a rule
	maxWaitMS          = 45_000
	maxBuildWaitMS     = 50_000 // clients give up a call after 60 s
)

var (
	target      = length(1, maxTarget)
	paths       = items(0, sandbox.MaxDiffPaths, length(1, sandbox.MaxPathBytes))
	packages    = items(0, sandbox.MaxTemplatePackages, length(1, 512))
	environment = pairs(sandbox.MaxEnvPairs, sandbox.MaxEnvBytes)
	lifetime    = between(0, maxLifetimeSeconds)
	optionalRef = length(0, 128) // the id or name of something
	neededRef   = length(1, 128)
	source      = length(1, 1024)
)

// argumentLimits are the limits of arguments: by the tool and the argument's path,
// by the type that declares a member, or by name alone.
var argumentLimits = map[string]limit{
	"sandbox":  neededRef,
	"winner":   neededRef,
	"job_id":   neededRef,
	"build_id": neededRef,
	"secret":   neededRef,
	"volume":   neededRef,
	"against":  optionalRef,
	"snapshot": optionalRef,
	"template": length(0, 256),
	"name":     length(0, sandbox.MaxNameLength),
	"context":  length(0, sandbox.MaxNameLength),
	"label":    length(0, sandbox.MaxSnapshotLabel),
	"user":     length(0, 64),
	"owner":    length(0, 64),
	"workdir":  length(0, sandbox.MaxPathBytes),
	"path":     length(1, sandbox.MaxPathBytes),
	"paths":    paths,
	"env":      environment,
	"set":      environment,
	"unset":    items(0, sandbox.MaxEnvPairs, length(1, 1024)),
	"metadata": pairs(sandbox.MaxMetadataPairs, sandbox.MaxMetadataValue),
	"secrets":  pairs(sandbox.MaxSecretsPerSandbox, 128),
	"ports":    items(0, sandbox.MaxPublishedPorts),
	"mounts":   items(0, sandbox.MaxMounts),
	"states":   items(0, 6),
	"stdin":    length(0, sandbox.MaxStdinBytes),
	"code":     length(1, sandbox.MaxCodeBytes),
	"port":     between(1, 65535),
	"url":      length(1, 8<<10),
	"cursor":   length(0, 4096),
	"limit":    between(1, 200),
	"offset":   between(0, maxOffset),

	"vcpus":                   between(1, sandbox.MaxVCPUs),
	"memory_mib":              between(sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB),
	"disk_mib":                between(sandbox.MinDiskMiB, sandbox.MaxDiskMiB),
	"max_pids":                between(sandbox.MinPIDs, sandbox.MaxPIDsLimit),
	"history":                 between(0, sandbox.MaxHistory),
	"count":                   between(1, sandbox.MaxForks),
	"lifetime_seconds":        lifetime,
	"idle_timeout_seconds":    lifetime,
	"paused_lifetime_seconds": lifetime,

	"checkpoint_interval_seconds": between(0, int64(sandbox.MaxCheckpointInterval/time.Second)),

	"NetworkPolicy.allow_out":              items(0, sandbox.MaxNetworkRules, target),
	"NetworkPolicy.deny_out":               items(0, sandbox.MaxNetworkRules, target),
	"NetworkPolicy.headers":                items(0, sandbox.MaxHeaderRules),
	"HeaderRule.to":                        target,
	"HeaderRule.set":                       pairs(sandbox.MaxHeaders, sandbox.MaxHeaderValue),
	"NetworkPolicy.rules":                  items(0, sandbox.MaxNetworkRules),
	"NetworkPolicy.ask_timeout_seconds":    between(0, sandbox.MaxAskTimeoutSeconds),
	"NetworkPolicy.max_connections":        between(0, sandbox.MaxMaxConnections),
	"NetworkPolicy.connections_per_second": between(0, sandbox.MaxConnectionsPerSecond),
	"NetworkPolicy.bytes_per_second":       between(0, 1<<50),
	"NetworkRule.to":                       target,
	"NetworkRule.protocol":                 oneOf("tcp", "udp", "icmp"),
	"NetworkRule.ports":                    items(0, 64, length(1, 11)),
	"NetworkLogRequest.host":               length(0, maxTarget),
	"PublishedPort.host":                   between(0, 65535),
	"PublishedPort.guest":                  between(1, 65535),
	"PublishedPort.address":                length(0, 64),
	"Mount.target":                         length(1, sandbox.MaxPathBytes),
	"Mount.volume":                         optionalRef,
	"Mount.host":                           length(0, sandbox.MaxPathBytes),
	"Mount.size_mib":                       between(0, sandbox.MaxMemoryMiB),
	"Webhook.url":                          length(1, 2048),
	"Webhook.secret":                       length(0, 1024),
	"Region.x":                             between(0, sandbox.MaxScreenWidth),
	"Region.y":                             between(0, sandbox.MaxScreenHeight),
	"Region.width":                         between(1, sandbox.MaxScreenWidth),
	"Region.height":                        between(1, sandbox.MaxScreenHeight),
	"Desktop.width":                        between(64, sandbox.MaxScreenWidth),
	"Desktop.height":                       between(64, sandbox.MaxScreenHeight),
	"Desktop.display":                      length(0, 8),
	"TemplateSource.image":                 source,
	"TemplateSource.archive":               source,
	"TemplateSource.directory":             source,
	"TemplateSource.debian":                source,
	"TemplateSource.template":              source,
	"TemplateSource.snapshot":              source,
	"StartCommand.command":                 length(1, maxArgument),
	"StartCommand.ready":                   length(0, maxArgument),
	"StartCommand.timeout_ms":              between(0, sandbox.MaxStartTimeout.Milliseconds()),
	"TemplateSpec.description":             length(0, 1024),
	"TemplateSpec.apt":                     packages,
	"TemplateSpec.pip":                     packages,
	"TemplateSpec.npm":                     packages,
	"TemplateSpec.warm":                    pairs(8, sandbox.MaxCodeBytes),
	"TemplateSpec.ports":                   items(0, sandbox.MaxPublishedPorts, between(1, 65535)),
	"TemplateFile.mode":                    length(0, 6),

	"code_context.action":               oneOf(actionList, actionInterrupt, actionRestart, actionDelete),
	"code_context.context":              length(1, sandbox.MaxNameLength),
	"computer_action.action":            oneOf(actionNames()...),
	"computer_action.x":                 between(0, sandbox.MaxScreenWidth),
	"computer_action.y":                 between(0, sandbox.MaxScreenHeight),
	"computer_action.to_x":              between(0, sandbox.MaxScreenWidth),
	"computer_action.to_y":              between(0, sandbox.MaxScreenHeight),
	"computer_action.text":              length(0, sandbox.MaxTypedBytes),
	"computer_action.key":               length(0, 1024),
	"computer_action.direction":         oneOf("up", "down", "left", "right"),
	"computer_action.amount":            between(1, maxScroll),
	"computer_action.duration_ms":       between(0, sandbox.MaxInputTime.Milliseconds()),
	"computer_clipboard.text":           length(0, sandbox.MaxClipboard),
	"computer_create.url":               length(0, 8<<10),
	"computer_screenshot.width":         between(0, sandbox.MaxScreenWidth),
	"computer_screenshot.height":        between(0, sandbox.MaxScreenHeight),
	"computer_screenshot.quality":       between(0, 100),
	"computer_screenshot.stable_ms":     between(0, sandbox.MaxStableWait.Milliseconds()),
	"computer_view.ttl_seconds":         between(0, int64(sandbox.MaxPreviewLink/time.Second)),
	"computer_windows.window":           between(1, 1<<32-1),
	"file_edit.new_text":                length(0, maxRead),
	"file_edit.old_text":                length(1, maxRead),
	"file_list.depth":                   between(1, sandbox.MaxListDepth),
	"file_list.limit":                   between(1, 500),
	"file_move.from":                    length(1, sandbox.MaxPathBytes),
	"file_move.to":                      length(1, sandbox.MaxPathBytes),
	"file_read.encoding":                oneOf(encodingText, encodingBase64, encodingImage),
	"file_read.limit":                   between(1, maxRead),
	"file_search.content":               length(0, maxSearchPattern),
	"file_search.limit":                 between(1, 500),
	"file_search.name":                  length(0, maxSearchPattern),
	"file_write.encoding":               oneOf(encodingText, encodingBase64),
	"file_write.mode":                   length(0, 5),
	"job_get.stderr_offset":             between(0, maxOffset),
	"job_get.stdout_offset":             between(0, maxOffset),
	"job_get.wait_ms":                   between(0, maxWaitMS),
	"job_list.limit":                    between(1, 100),
	"job_stop.kill_after_ms":            between(0, 30_000),
	"job_stop.signal":                   oneOf("TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2"),
	"network_log.since":                 length(0, 40),
	"network_log.until":                 length(0, 40),
	"preview_create.expires_in_seconds": lifetime,
	"preview_link.expires_in_seconds":   between(0, int64(sandbox.MaxPreviewLink/time.Second)),
	"preview_link.path":                 length(0, 2048),
	"preview_list.sandbox":              optionalRef,
	"process_kill.pid":                  between(2, 1<<30),
	"process_kill.signal":               oneOf("TERM", "KILL", "INT", "HUP", "QUIT", "STOP", "CONT", "USR1", "USR2"),
	"process_list.limit":                between(1, 500),
	"process_list.sort":                 oneOf("pid", "cpu", "memory"),
	"run_code.sandbox":                  optionalRef,
	"run_code.timeout_ms":               between(1, sandbox.MaxCodeTimeout.Milliseconds()),
	"sandbox_diff.limit":                between(1, sandbox.DefaultDiffLimit),
	"sandbox_exec.command":              items(1, 4096, length(0, maxArgument)),
	"sandbox_exec.shell":                length(1, maxArgument),
	"sandbox_exec.timeout_ms":           between(1, sandbox.DetachedTimeout.Milliseconds()),
	"sandbox_stats.minutes":             between(1, int64(sandbox.StatsRetention/time.Minute)),
	"sandbox_stats.sandbox":             optionalRef,
	"sandbox_try.commands":              items(1, sandbox.MaxForks, length(1, maxArgument)),
	"sandbox_try.pick":                  length(0, 16),
	"sandbox_try.timeout_ms":            between(1, sandbox.MaxExecTimeout.Milliseconds()),
	"secret_attach.env":                 length(1, 256),
	"secret_detach.env":                 length(1, 256),
	"snapshot_delete.snapshot":          neededRef,
	"snapshot_list.sandbox":             optionalRef,
	"snapshot_restore.step":             between(-sandbox.MaxHistory, -1),
	"template_build.files":              items(0, sandbox.MaxTemplateFiles),
	"template_build.files.content":      length(0, sandbox.MaxTemplateFileBytes),
	"template_build.name":               length(1, sandbox.MaxNameLength),
	"template_build.run":                items(0, sandbox.MaxTemplateSteps, length(1, maxArgument)),
	"template_build.wait_ms":            between(0, maxBuildWaitMS),
	"template_build_status.wait_ms":     between(0, maxBuildWaitMS),
	"template_delete.name":              length(1, 256),
	"template_get.name":                 length(1, 256),
	"toolset_enable.toolsets":           items(1, 32, length(1, 64)),
	"volume_create.name":                length(1, sandbox.MaxNameLength),
	"volume_create.size_mib":            between(1, sandbox.MaxDiskMiB),
}

// resultLimits are the limits of results, by the type that declares a member, or by
// name. Other integers in results are not negative. A network policy in a result has
// the limits that it has in arguments.
var resultLimits = map[string]limit{
	"exit_code":                       {"integer", func(s *jsonschema.Schema) { s.Minimum = nil }},
	"snapshotView.step":               between(-sandbox.MaxHistory, -1),
	"ErrorDetail.retry_after_seconds": between(1, 86400),
	"execResult.state":                oneOf(string(sandbox.JobExited), string(sandbox.JobRunning)),
	"EnvVar.source":                   oneOf("template", "sandbox", "secret"),
	"Region.x":                        between(-1<<16, 1<<16),
	"Region.y":                        between(-1<<16, 1<<16),
	"readResult.encoding":             oneOf(encodingText, encodingBase64, encodingImage),
}
