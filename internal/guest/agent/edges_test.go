package agent

import (
	"testing"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// If a command ends as soon as it has read its input, the write that closes the input
// must not fail.
func TestCloseInputOfCommandThatEndsAtOnce(t *testing.T) {
	s := start(t)
	for range 50 {
		job := s.background(t, &agentv1.ExecRequest{Argv: []string{"head", "-c", "1"}, OpenStdin: true})
		_, err := s.WriteInput(t.Context(), connect.NewRequest(&agentv1.WriteInputRequest{JobId: job.JobId, Data: []byte("x"), Close: true}))
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAttachBeyondTheOutput(t *testing.T) {
	s := start(t)
	job := s.sh(t, "echo four").started.JobId
	stream, err := s.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{JobId: job, StdoutOffset: 100}))
	if err == nil {
		_, err = follow(stream)
	}
	wantCode(t, err, connect.CodeInvalidArgument, "beyond what job")
}
