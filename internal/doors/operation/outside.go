package operation

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

// Of what sandboxes reach.
var (
	GetNetwork = op(about("GET "+inBox+"/network", "get-network", "network", read, "Get what a sandbox may reach"), one[SandboxPath](sandbox.Service.GetNetwork))
	SetNetwork = op(about("POST "+inBox+"/network", "set-network", "network", write, "Replace what a sandbox may reach, at once").
			says("The whole policy is replaced. Existing connections are judged again before the answer."),
		inSandbox(sandbox.Service.SetNetwork))
	NetworkLog = op(about("GET "+inBox+"/network/log", "list-network-log", "network", read, "List what a sandbox tried to reach, newest first; of ended ones too").does("NetworkLog"),
		func(ctx context.Context, s sandbox.Service, in *networkLogInput) (*sandbox.List[sandbox.NetworkEvent], error) {
			return s.NetworkLog(ctx, in.Sandbox, in.request(in.Page))
		})
	FollowNetworkLog = streamed(about("GET "+inBox+"/network/log/follow", "follow-network-log", "network", read, "Stream what a sandbox tries to reach from now on").
				says("The stream ends with the sandbox or when the client goes. With `Accept: text/event-stream` the lines are server-sent events."),
		func(ctx context.Context, s sandbox.Service, in *followNetworkInput, send func(NetworkLine) error) error {
			err := s.FollowNetworkLog(ctx, in.Sandbox, in.request(sandbox.Page{}), func(ev sandbox.NetworkEvent) error { return send(NetworkLine{Event: &ev}) })
			if err != nil {
				return err
			}
			return send(NetworkLine{End: Final})
		})
)

// Of what network policies ask.
var (
	ListApprovals = op(about("GET /v1/approvals", "list-approvals", "approvals", read, "List what network policies ask, newest first").
			says("Open ones, unless the query says otherwise. What is asked comes from code in a sandbox and is not trusted."), query(sandbox.Service.ListApprovals))
	GetApproval    = op(about("GET /v1/approvals/{id}", "get-approval", "approvals", read, "Get a question of a network policy"), one[ApprovalPath](sandbox.Service.GetApproval))
	AnswerApproval = op(about("POST /v1/approvals/{id}", "answer-approval", "approvals", write, "Allow or refuse what a network policy asks").
			says("The first answer counts; another one, and one to a question that has ended, is a conflict."),
		func(ctx context.Context, s sandbox.Service, in *answerApprovalInput) (*sandbox.Approval, error) {
			return s.AnswerApproval(ctx, in.ID, in.Body)
		})
)

// Of ports.
var (
	CreatePreview = op(about("POST "+inPreviews, "create-preview", "previews", write, "Make a port of a sandbox a URL; the key of a private one is shown this once").created("").
			says("A preview that is there for the port already is changed. A visitor shows the key as header `%s` or as query parameter `%s`.", sandbox.PreviewKeyHeader, sandbox.PreviewKeyParam),
		inSandbox(sandbox.Service.CreatePreview))
	ListSandboxPreviews = op(about("GET "+inPreviews, "list-sandbox-previews", "previews", read, "List the previews of a sandbox by port").does("ListPreviews"), pageOf(sandbox.Service.ListPreviews))
	ListPreviews        = op(about("GET /v1/previews", "list-previews", "previews", read, "List the previews of all living sandboxes, by sandbox and port").says("Those that have expired are left out."),
		func(ctx context.Context, s sandbox.Service, in *sandbox.Page) (*sandbox.List[sandbox.Preview], error) {
			return s.ListPreviews(ctx, "", *in)
		})
	LinkPreview = op(about("POST "+inPreviews+"/{port}/link", "link-preview", "previews", write, "Sign a link that opens a private preview"),
		func(ctx context.Context, s sandbox.Service, in *linkPreviewInput) (*sandbox.PreviewLink, error) {
			return s.LinkPreview(ctx, in.Sandbox, in.Port, in.Body)
		})
	DeletePreview = op(about("DELETE "+inPreviews+"/{port}", "delete-preview", "previews", write, "End a preview, its key and its links, at once"),
		func(ctx context.Context, s sandbox.Service, in *PortPath) (*Empty, error) {
			return nil, s.DeletePreview(ctx, in.Sandbox, in.Port)
		})
	DialPort = Op[PortPath, Empty]{Info: about("GET "+inBox+"/ports/{port}", "dial-port", "previews", write, "Connect to a port of a sandbox").
			says("A WebSocket that is a TCP connection to the port: binary messages are its bytes, cut anywhere. The text message `eof` ends what its sender " +
			"sends; after one from each side the server closes the WebSocket. A connection that breaks inside breaks the WebSocket. A port on which nothing listens " +
			"is refused before the protocol changes.")}
)

// Of screens.
var (
	GetScreen  = op(about("GET "+inComputer+"/screen", "get-screen", "computers", read, "Tell the size of the screen and where the pointer is"), one[SandboxPath](sandbox.Service.GetScreen))
	Screenshot = Op[ScreenshotInput, sandbox.Screenshot]{Info: about("GET "+inComputer+"/screenshot", "screenshot", "computers", read, "Take a picture of the screen").
			says("The answer is the picture, with the headers `Cove-Screen`, `Cove-Cursor` and `Cove-Stable`; with `Accept: application/json` it is JSON that has it in base64.")}
	SendInput = op(about("POST "+inComputer+"/input", "send-input", "computers", computers, "Use the pointer and the keyboard").
			says("Inputs are done in their order, up to the first that fails; buttons and keys that are held then are let go of."),
		func(ctx context.Context, s sandbox.Service, in *inputInput) (*sandbox.Screen, error) {
			return s.SendInput(ctx, in.Sandbox, in.Body.Inputs)
		})
	GetClipboard = op(about("GET "+inComputer+"/clipboard", "get-clipboard", "computers", read, "Read the clipboard as text"),
		func(ctx context.Context, s sandbox.Service, in *SandboxPath) (*ClipboardText, error) {
			text, err := s.GetClipboard(ctx, in.Sandbox)
			return &ClipboardText{text}, err
		})
	SetClipboard = op(about("PUT "+inComputer+"/clipboard", "set-clipboard", "computers", computers, "Put text into the clipboard").upTo(maxClipboardBody),
		func(ctx context.Context, s sandbox.Service, in *SandboxBody[ClipboardText]) (*Empty, error) {
			return nil, s.SetClipboard(ctx, in.Sandbox, in.Body.Text)
		})
	ListWindows   = op(about("GET "+inComputer+"/windows", "list-windows", "computers", read, "List windows, the topmost first").says(windowsText, sandbox.MaxWindows), one[SandboxPath](sandbox.Service.ListWindows))
	ControlWindow = op(about("POST "+inComputer+"/windows", "control-window", "computers", computers, "Focus, close or place a window, and list all").says(windowsText, sandbox.MaxWindows), inSandbox(sandbox.Service.ControlWindow))
	OpenURL       = op(about("POST "+inComputer+"/open", "open-url", "computers", computers, "Open an address in the computer's browser").does("OpenURL"),
		func(ctx context.Context, s sandbox.Service, in *openInput) (*Empty, error) {
			return nil, s.OpenURL(ctx, in.Sandbox, in.Body.URL)
		})
	ViewComputer = op(about("POST "+inComputer+"/view", "view-computer", "computers", computers, "Sign a link to the live view"), inSandbox(sandbox.Service.ViewComputer))
)

const windowsText = "The answer has the windows of one instant, at most %d."
