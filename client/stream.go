package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/cove-sh/cove/sandbox"
)

// ending is what the last line of a stream has.
type ending struct {
	Final bool       `json:"final"`
	Error *lineError `json:"error"`
}

// errCut is the cause when a stream ends without its last line.
var errCut = errors.New("the stream ended before its last line")

// stream sends a request and passes each line that is answered to take, which
// returns the line's ending.
func stream[L any](ctx context.Context, c *Client, method string, e endpoint, body any, take func(L) (ending, error)) error {
	// Leaving early must end the request on the server too.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := c.request(ctx, method, e, body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var line L
		if err := dec.Decode(&line); err != nil {
			if err == io.EOF {
				err = errCut
			}
			return c.connectionError(ctx, err)
		}
		end, err := take(line)
		switch {
		case err != nil:
			return err
		case end.Error != nil:
			return end.Error.err()
		case end.Final:
			// Reading to the end lets the connection be used again.
			_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10))
			return nil
		}
	}
}

// jobLine is one line of a stream of job events.
type jobLine struct {
	sandbox.JobEvent
	ending
}

// streamJob passes a stream of job events to sink and returns the job of its
// last line.
func (c *Client) streamJob(ctx context.Context, method string, e endpoint, body any, sink sandbox.JobSink) (*sandbox.Job, error) {
	var job *sandbox.Job
	err := stream(ctx, c, method, e, body, func(l jobLine) (ending, error) {
		if l.Final {
			job = l.Job
		} else if l.Error == nil && sink != nil {
			return l.ending, sink(l.JobEvent)
		}
		return l.ending, nil
	})
	if err != nil {
		return nil, err
	}
	return job, nil
}
