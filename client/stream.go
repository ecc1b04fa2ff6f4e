package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// errCut is the cause when a stream ends without its last line.
var errCut = errors.New("the stream ended before its last line")

// stream sends a request, passes each line of the answer except the last to take, and
// returns the last.
func stream[L any, P operation.Line[L]](ctx context.Context, c *Client, info operation.Info, sends any, take func(L) error, names ...string) (*L, error) {
	// Leaving early must end the request on the server too.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := c.request(ctx, info, sends, names)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var line L
		if err := dec.Decode(&line); err != nil {
			if err == io.EOF {
				err = errCut
			}
			return nil, c.connectionError(ctx, err)
		}
		switch end := P(&line).Last(); {
		case end.Error != nil:
			return nil, errorOfLine(end.Error)
		case end.Final:
			// Reading to the end lets the connection be used again.
			_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10))
			return &line, nil
		}
		if err := take(line); err != nil {
			return nil, err
		}
	}
}

// streamJob passes a stream of job events to sink and returns the job of its
// last line.
func (c *Client) streamJob(ctx context.Context, info operation.Info, sends any, sink sandbox.JobSink, names ...string) (*sandbox.Job, error) {
	last, err := stream(ctx, c, info, sends, func(l operation.JobLine) error { return tell(sink, l.JobEvent) }, names...)
	if err != nil {
		return nil, err
	}
	return last.Job, nil
}

// tell passes an event to sink, which may be nil.
func tell[E any, S ~func(E) error](sink S, event E) error {
	if sink == nil {
		return nil
	}
	return sink(event)
}
