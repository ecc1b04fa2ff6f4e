package envd

import (
	"errors"
	"testing"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/sandbox"
)

// What code in a sandbox made its agent say is no answer to a client: the service
// has given the error a code and a text that can be shown.
func TestFailureHidesItsCause(t *testing.T) {
	agent := connect.NewError(connect.CodeDataLoss, errors.New("\x1b[31mas the agent wrote it"))
	err := failure(sandbox.Wrap(sandbox.CodeNotFound, agent, "there is no such file"))
	ce, ok := err.(*connect.Error)
	if !ok || ce.Code() != connect.CodeNotFound || ce.Message() != "there is no such file" {
		t.Errorf("got %v", err)
	}
}
