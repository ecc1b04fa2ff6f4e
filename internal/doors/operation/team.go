package operation

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

// Operations on secrets.
var (
	CreateSecret = op(about("POST /v1/secrets", "create-secret", "secrets", secrets, "Create a secret, whose value nobody can read again").created("/v1/secrets/"), body(sandbox.Service.CreateSecret))
	ListSecrets  = op(about("GET /v1/secrets", "list-secrets", "secrets", anyScope, "List secrets, without values, newest first"), query(sandbox.Service.ListSecrets))
	GetSecret    = op(about("GET /v1/secrets/{secret}", "get-secret", "secrets", anyScope, "Get a secret, without its value"), one[SecretPath](sandbox.Service.GetSecret))
	RotateSecret = op(about("POST /v1/secrets/{secret}/rotate", "rotate-secret", "secrets", secrets, "Replace a secret's value, at once in running sandboxes"),
		func(ctx context.Context, s sandbox.Service, in *rotateSecretInput) (*sandbox.Secret, error) {
			return s.RotateSecret(ctx, in.Secret, in.Body)
		})
	DeleteSecret     = op(about("DELETE /v1/secrets/{secret}", "delete-secret", "secrets", secrets, "Delete a secret, which ends its use everywhere"), remove[SecretPath](sandbox.Service.DeleteSecret))
	RotateSecretsKey = op(about("POST /v1/secrets-key/rotate", "rotate-secrets-key", "secrets", admin, "Make a new key for the values of all secrets, and seal them with it"), plain(sandbox.Service.RotateSecretsKey))
	ListProviders    = op(about("GET /v1/providers", "list-providers", "secrets", anyScope, "List presets for secrets of well-known services, sorted by name").says("The presets are part of the program; one answer has them all."), plain(sandbox.Service.ListProviders))
	AttachSecret     = op(about("POST "+inBox+"/secrets", "attach-secret", "secrets", write, "Give a living sandbox a placeholder for a secret"),
		func(ctx context.Context, s sandbox.Service, in *SandboxBody[AttachSecretBody]) (*sandbox.Sandbox, error) {
			return s.AttachSecret(ctx, in.Sandbox, in.Body.Secret, in.Body.Env)
		})
	DetachSecret = op(about("DELETE "+inBox+"/secrets/{env}", "detach-secret", "secrets", write, "Take a secret from a sandbox"),
		func(ctx context.Context, s sandbox.Service, in *detachSecretInput) (*sandbox.Sandbox, error) {
			return s.DetachSecret(ctx, in.Sandbox, in.Env)
		})
)

// Operations on volumes, orphans and the machine.
var (
	CreateVolume  = op(about("POST /v1/volumes", "create-volume", "volumes", write, "Create a volume, which outlives the sandboxes that mount it").created("/v1/volumes/").repeatable(RepeatWhole), body(sandbox.Service.CreateVolume))
	ListVolumes   = op(about("GET /v1/volumes", "list-volumes", "volumes", read, "List volumes, newest first"), query(sandbox.Service.ListVolumes))
	GetVolume     = op(about("GET /v1/volumes/{volume}", "get-volume", "volumes", read, "Get a volume, with the size of its content"), one[volumePath](sandbox.Service.GetVolume))
	DeleteVolume  = op(about("DELETE /v1/volumes/{volume}", "delete-volume", "volumes", write, "Delete a volume and its files; a conflict if a sandbox or a snapshot uses it"), remove[volumePath](sandbox.Service.DeleteVolume))
	ListOrphans   = op(about("GET /v1/orphans", "list-orphans", "orphans", admin, "List what the server has found without a record and set aside, oldest first; needs the scope admin"), query(sandbox.Service.ListOrphans))
	RecoverOrphan = op(about("POST /v1/orphans/{id}/recover", "recover-orphan", "orphans", admin, "Give an orphan a record again, as a volume or a snapshot; needs the scope admin"), one[orphanPath](sandbox.Service.RecoverOrphan))
	CheckMachine  = op(about("GET /v1/machine", "check-machine", "server", admin, "Check what the server's machine lets Cove do, and how to get what is missing; needs the scope admin"), plain(sandbox.Service.CheckMachine))
)

// Operations on nodes.
var (
	ListNodes       = op(about("GET /v1/nodes", "list-nodes", "nodes", admin, "List the machines on which the server runs sandboxes; needs the scope admin").says("One answer has them all."), plain(sandbox.Service.ListNodes))
	CreateJoinToken = op(about("POST /v1/node-tokens", "create-join-token", "nodes", admin, "Make a token with which one machine can join as a node; needs the scope admin").created(""), plain(sandbox.Service.CreateJoinToken))
	DrainNode       = op(about("POST /v1/nodes/{node}/drain", "drain-node", "nodes", admin, "Keep new sandboxes from a node; needs the scope admin").says("Sandboxes on the node continue there, unless the request says that they move to other nodes. A move goes on after the answer; the list of nodes has its progress."),
		func(ctx context.Context, s sandbox.Service, in *drainInput) (*sandbox.Node, error) {
			if in.Body == nil { // the body is optional
				in.Body = new(sandbox.DrainRequest)
			}
			return s.DrainNode(ctx, in.Node, *in.Body)
		})
	UndrainNode = op(about("POST /v1/nodes/{node}/undrain", "undrain-node", "nodes", admin, "Let a node take new sandboxes again; needs the scope admin"), one[nodePath](sandbox.Service.UndrainNode))
	RemoveNode  = op(about("DELETE /v1/nodes/{node}", "remove-node", "nodes", admin, "Remove a node for good; a node on which sandboxes run is a conflict; needs the scope admin"), remove[nodePath](sandbox.Service.RemoveNode))
)

// Operations on API keys.
var (
	CreateKey = op(about("POST /v1/keys", "create-key", "keys", admin, "Create an API key; its secret is shown only this once").created(""), body(sandbox.Service.CreateKey))
	ListKeys  = op(about("GET /v1/keys", "list-keys", "keys", admin, "List API keys, without secrets"), query(sandbox.Service.ListKeys))
	RevokeKey = op(about("DELETE /v1/keys/{id}", "revoke-key", "keys", admin, "Revoke an API key"), one[keyPath](sandbox.Service.RevokeKey))
)

// Operations on templates and their builds.
var (
	ListTemplates = op(about("GET /v1/templates", "list-templates", "templates", read, "List templates, built or only defined, sorted by name"), query(sandbox.Service.ListTemplates))
	GetTemplate   = op(about("GET /v1/templates/{name}", "get-template", "templates", read, "Get a template"), one[templatePath](sandbox.Service.GetTemplate))
	BuildTemplate = streamed(about("POST /v1/templates", "build-template", "templates", templates, "Build a template").upTo(maxBuildBody).
			says("The answer is a stream of events that ends with a line marked `final`, which has the template, or with an `error`. "+
			"A client that disconnects cancels the build; an earlier build stays in use. Use `POST /v1/builds` for a build that continues."),
		func(ctx context.Context, s sandbox.Service, in *Body[sandbox.BuildTemplateRequest], send func(BuildLine) error) error {
			built, err := s.BuildTemplate(ctx, in.Body, func(ev sandbox.BuildEvent) error { return send(BuildLine{BuildEvent: ev}) })
			if err != nil {
				return err
			}
			return send(BuildLine{BuildEvent: sandbox.BuildEvent{Step: "done", Fraction: 1, Template: built}, End: Final})
		})
	DeleteTemplate = op(about("DELETE /v1/templates/{name}", "delete-template", "templates", templates, "Remove a template, or one version; its sandboxes and snapshots stay"), remove[templatePath](sandbox.Service.DeleteTemplate))
	AliasTemplate  = op(about("PUT /v1/template-aliases/{alias}", "alias-template", "templates", templates, "Give a template or a version an alias"),
		func(ctx context.Context, s sandbox.Service, in *aliasInput) (*Empty, error) {
			if in.Body.Name == "" {
				return nil, sandbox.Errorf(sandbox.CodeInvalid, "name is empty; give the template that the alias stands for, or delete the alias")
			}
			return nil, s.AliasTemplate(ctx, in.Alias, in.Body.Name)
		})
	DeleteTemplateAlias = op(about("DELETE /v1/template-aliases/{alias}", "delete-template-alias", "templates", templates, "Remove an alias").says("Its template stays."),
		func(ctx context.Context, s sandbox.Service, in *AliasPath) (*Empty, error) {
			return nil, s.AliasTemplate(ctx, in.Alias, "")
		})
	LinkUpload = op(about("POST /v1/template-upload-links", "link-upload", "templates", templates, "Make a link with which an archive can be sent without a key").
			says("Send the archive as the body of a PUT to `url`. For an hour, a copy step of a spec can then use it under the name in `archive`."),
		body(sandbox.Service.LinkUpload))
	UploadArchive = Op[Empty, sandbox.ArchiveUpload]{Info: about("POST /v1/template-archives", "upload-archive", "templates", templates, "Send an archive of an image, for builds from it").
			says("The body is what docker save or an OCI tool wrote, as tar, perhaps compressed. It is kept for an hour; a spec can use it under the name in `archive`.")}
	StartBuild  = op(about("POST /v1/builds", "start-build", "templates", templates, "Start to build a template, in the background").upTo(maxBuildBody).repeatable(RepeatWhole).accepted("/v1/builds/"), body(sandbox.Service.StartBuild))
	ListBuilds  = op(about("GET /v1/builds", "list-builds", "templates", read, "List builds, newest first"), query(sandbox.Service.ListBuilds))
	GetBuild    = op(about("GET /v1/builds/{build}", "get-build", "templates", read, "Get a build"), one[buildPath](sandbox.Service.GetBuild))
	FollowBuild = streamed(about("GET /v1/builds/{build}/events", "follow-build", "templates", read, "Follow a build from its beginning until it has ended").
			says("The answer is a stream of events that ends with a line marked `final`, which has the build, or with an `error`. "+
			"A client that disconnects leaves the build alone."),
		func(ctx context.Context, s sandbox.Service, in *buildPath, send func(BuildLine) error) error {
			build, err := s.FollowBuild(ctx, in.Build, func(ev sandbox.BuildEvent) error { return send(BuildLine{BuildEvent: ev}) })
			if err != nil {
				return err
			}
			return send(BuildLine{BuildEvent: sandbox.BuildEvent{Step: build.Step, Fraction: build.Fraction}, Build: build, End: Final})
		})
	CancelBuild = op(about("POST /v1/builds/{build}/cancel", "cancel-build", "templates", templates, "Cancel a build and remove what it has made"), one[buildPath](sandbox.Service.CancelBuild))
)
