package agentclient

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// merger is an agent that takes a merge.
type merger struct {
	impostor
	got chan string // what came until the stream ended or broke
	err error
}

func (m *merger) Apply(_ context.Context, s *connect.ClientStream[agentv1.ApplyRequest]) (*connect.Response[agentv1.ApplyResponse], error) {
	var b strings.Builder
	for s.Receive() {
		b.Write(s.Msg().GetData())
	}
	if s.Err() != nil {
		b.WriteString("|broken")
	}
	m.got <- b.String()
	return connect.NewResponse(&agentv1.ApplyResponse{}), m.err
}

func TestApply(t *testing.T) {
	boom := errors.New("boom")
	big := strings.Repeat("0123456789", 100_000)
	for _, tt := range []struct {
		name    string
		content io.Reader
		agent   error
		got     string
		err     error        // as it is
		code    sandbox.Code // or of this code
	}{
		{name: "content fails", content: io.MultiReader(strings.NewReader(big), iotest.ErrReader(boom)), got: "|broken", err: boom},
		{name: "whole", content: strings.NewReader(big), got: big},
		{name: "content is cut off", content: iotest.ErrReader(io.ErrUnexpectedEOF), err: io.ErrUnexpectedEOF},
		{name: "refused", content: strings.NewReader("x"), got: "x", agent: connect.NewError(connect.CodeAborted, boom), code: sandbox.CodeConflict},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := &merger{got: make(chan string, 1), err: tt.agent}
			c := serveAgent(t, m)
			err := c.Apply(t.Context(), tt.content)
			switch {
			case tt.code != "":
				if sandbox.CodeOf(err) != tt.code {
					t.Errorf("got %v, want code %s", err, tt.code)
				}
			case err != tt.err:
				t.Errorf("got error %v, want %v", err, tt.err)
			}
			if tt.got == "" { // nothing may have been sent
				return
			}
			if got := <-m.got; got != tt.got && !(tt.got == "|broken" && strings.HasSuffix(got, "|broken")) {
				t.Errorf("the agent got %d bytes, want %d", len(got), len(tt.got))
			}
		})
	}
}
