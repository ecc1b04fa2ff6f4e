package operation

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

// Operations on what sandboxes can reach.
var (
	GetNetwork = op(about("GET "+inBox+"/network", "get-network", "network", read, "Get the network policy of a sandbox"), one[SandboxPath](sandbox.Service.GetNetwork))
	SetNetwork = op(about("POST "+inBox+"/network", "set-network", "network", write, "Replace the network policy of a sandbox, at once").
			says("The whole policy is replaced. Existing connections are judged again before the answer."),
		inSandbox(sandbox.Service.SetNetwork))
	NetworkLog = op(about("GET "+inBox+"/network/log", "list-network-log", "network", read, "List what a sandbox tried to reach, newest first, also if it has ended").does("NetworkLog"),
		func(ctx context.Context, s sandbox.Service, in *networkLogInput) (*sandbox.List[sandbox.NetworkEvent], error) {
			return s.NetworkLog(ctx, in.Sandbox, in.request(in.Page))
		})
	FollowNetworkLog = streamed(about("GET "+inBox+"/network/log/follow", "follow-network-log", "network", read, "Stream what a sandbox tries to reach from now on").
				says("The stream ends with the sandbox or when the client disconnects. With `Accept: text/event-stream` the lines are server-sent events."),
		func(ctx context.Context, s sandbox.Service, in *followNetworkInput, send func(NetworkLine) error) error {
			err := s.FollowNetworkLog(ctx, in.Sandbox, in.request(sandbox.Page{}), func(ev sandbox.NetworkEvent) error { return send(NetworkLine{Event: &ev}) })
			if err != nil {
				return err
			}
			return send(NetworkLine{End: Final})
		})
)

// Operations on what network policies ask.
var (
	ListApprovals = op(about("GET /v1/approvals", "list-approvals", "approvals", read, "List what network policies ask, newest first").
			says("The answer has open questions, unless the query says otherwise. Their content comes from code in a sandbox; do not trust it."), query(sandbox.Service.ListApprovals))
	GetApproval    = op(about("GET /v1/approvals/{id}", "get-approval", "approvals", read, "Get a question of a network policy"), one[ApprovalPath](sandbox.Service.GetApproval))
	AnswerApproval = op(about("POST /v1/approvals/{id}", "answer-approval", "approvals", write, "Allow or refuse what a network policy asks").
			says("The first answer counts. A second answer, or an answer to a question that has ended, is a conflict."),
		func(ctx context.Context, s sandbox.Service, in *answerApprovalInput) (*sandbox.Approval, error) {
			return s.AnswerApproval(ctx, in.ID, in.Body)
		})
)

// Operations on ports.
var (
	CreatePreview = op(about("POST "+inPreviews, "create-preview", "previews", write, "Make a preview of a port; the key of a private preview is shown only this once").created("").
			says("If the port already has a preview, it is changed. A visitor sends the key as header `%s` or as query parameter `%s`.", sandbox.PreviewKeyHeader, sandbox.PreviewKeyParam),
		inSandbox(sandbox.Service.CreatePreview))
	ListSandboxPreviews = op(about("GET "+inPreviews, "list-sandbox-previews", "previews", read, "List the previews of a sandbox, sorted by port").does("ListPreviews"), pageOf(sandbox.Service.ListPreviews))
	ListPreviews        = op(about("GET /v1/previews", "list-previews", "previews", read, "List the previews of all living sandboxes, sorted by sandbox and port").says("Expired previews are left out."),
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
			says("A WebSocket that carries a TCP connection to the port: binary messages are its bytes, split anywhere. The text message `eof` says that its sender " +
			"sends no more; after one from each side the server closes the WebSocket. If the connection in the sandbox breaks, so does the WebSocket. If nothing listens " +
			"on the port, the request is refused before it becomes a WebSocket.")}
)

// Operations on screens.
var (
	GetScreen  = op(about("GET "+inComputer+"/screen", "get-screen", "computers", read, "Get the size of the screen and the position of the pointer"), one[SandboxPath](sandbox.Service.GetScreen))
	Screenshot = Op[ScreenshotInput, sandbox.Screenshot]{Info: about("GET "+inComputer+"/screenshot", "screenshot", "computers", read, "Take a picture of the screen").
			says("The answer is the picture, with the headers `Cove-Screen`, `Cove-Cursor` and `Cove-Stable`; with `Accept: application/json` it is JSON with the picture in base64.")}
	SendInput = op(about("POST "+inComputer+"/input", "send-input", "computers", computers, "Use the pointer and the keyboard").
			says("Inputs are performed in order, up to the first that fails; buttons and keys that are held then are released."),
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
	ListWindows   = op(about("GET "+inComputer+"/windows", "list-windows", "computers", read, "List windows, topmost first").says(windowsText, sandbox.MaxWindows), one[SandboxPath](sandbox.Service.ListWindows))
	ControlWindow = op(about("POST "+inComputer+"/windows", "control-window", "computers", computers, "Focus, close, minimize, maximize or place a window, and list all").says(windowsText, sandbox.MaxWindows), inSandbox(sandbox.Service.ControlWindow))
	OpenURL       = op(about("POST "+inComputer+"/open", "open-url", "computers", computers, "Open an address in the computer's browser").does("OpenURL"),
		func(ctx context.Context, s sandbox.Service, in *openInput) (*Empty, error) {
			return nil, s.OpenURL(ctx, in.Sandbox, in.Body.URL)
		})
	ViewComputer = op(about("POST "+inComputer+"/view", "view-computer", "computers", computers, "Sign a link to the live view"), inSandbox(sandbox.Service.ViewComputer))
)

const windowsText = "The answer has all windows, at most %d."
