package mcpserver

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// yesOrNo is the schema of a form without fields: the user accepts or declines.
var yesOrNo = json.RawMessage(`{"type":"object","properties":{}}`)

// canAsk reports whether the client can ask its user.
func canAsk(req *mcp.CallToolRequest) bool {
	caps := req.ClientCapabilities()
	return caps != nil && caps.Elicitation != nil && (caps.Elicitation.Form != nil || caps.Elicitation.URL == nil)
}

// elicitor returns the function that asks the client's user and accepts only a real
// answer. It returns nil if the client cannot ask, or if it is asked with the result of
// a request: see [parked].
func elicitor(req *mcp.CallToolRequest) func(ctx context.Context, key, question string) (dialect.Answer, error) {
	if !canAsk(req) || req.ProtocolVersion() >= statelessRevision {
		return nil
	}
	return func(ctx context.Context, _, question string) (dialect.Answer, error) {
		answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: question, RequestedSchema: yesOrNo})
		if err != nil {
			return dialect.NoAnswer, err
		}
		return answerOf(answer), nil
	}
}

func answerOf(r *mcp.ElicitResult) dialect.Answer {
	switch r.Action {
	case "accept":
		return dialect.Yes
	case "decline":
		return dialect.No
	}
	return dialect.NoAnswer
}

// asker returns the function that asks the client's user, or nil if the client cannot.
func asker(req *mcp.CallToolRequest, log *slog.Logger) func(ctx context.Context, key, question string) (bool, error) {
	if !canAsk(req) {
		return nil
	}
	if req.ProtocolVersion() >= statelessRevision {
		// In these revisions a server asks with the result of a call, and the client
		// repeats the call with the answer.
		return func(_ context.Context, key, question string) (bool, error) {
			if answer, ok := req.Params.InputResponses[key].(*mcp.ElicitResult); ok && answer != nil {
				return answer.Action == "accept", nil
			}
			return false, &dialect.InputNeeded{Requests: mcp.InputRequestMap{key: &mcp.ElicitParams{Message: question, RequestedSchema: yesOrNo}}}
		}
	}
	return func(ctx context.Context, _, question string) (bool, error) {
		answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: question, RequestedSchema: yesOrNo})
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if err != nil {
			// Proceed, as with a client that cannot ask: the user has made the call.
			log.WarnContext(ctx, "ask the client's user", "error", err)
			return true, nil
		}
		return answer.Action == "accept", nil
	}
}
