package api

import (
	"encoding/json"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

// seconds is a number, null, or absent.
type seconds struct {
	given bool
	value *int64 // nil for null
}

// UnmarshalJSON reads a number or null.
func (s *seconds) UnmarshalJSON(data []byte) error {
	s.given = true
	return json.Unmarshal(data, &s.value)
}

type updateBody struct {
	Metadata   map[string]string `json:"metadata"`
	Network    *network          `json:"network"`
	Timeout    seconds           `json:"timeout_seconds"`
	AutoDelete seconds           `json:"auto_delete_seconds"`
}

func (b *updateBody) check() error {
	if b.Metadata == nil && b.Network == nil && !b.Timeout.given && !b.AutoDelete.given {
		return invalid("give at least one of metadata, network, auto_delete_seconds and timeout_seconds")
	}
	if err := checkSeconds("timeout_seconds", b.Timeout.value, 1, maxTimeout); err != nil {
		return err
	}
	if err := checkSeconds("auto_delete_seconds", b.AutoDelete.value, 0, maxWindow); err != nil {
		return err
	}
	return terms.CheckTags(b.Metadata)
}

func (d *Door) update(w http.ResponseWriter, r *http.Request, args []string) error {
	var body updateBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	if err := body.check(); err != nil {
		return err
	}
	s, err := d.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	if n := body.Network; n != nil { // first: it is refused more often, and then nothing must have changed
		if _, err := d.cfg.Service.SetNetwork(r.Context(), s.ID, terms.Replace(s.Network, n.AllowOut, n.DenyOut)); err != nil {
			return err
		}
	}
	if body.Metadata != nil || body.Timeout.given || body.AutoDelete.given {
		if _, err := d.cfg.Service.Update(r.Context(), s.ID, body.request(s)); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// request returns the changes, except those of the network.
func (b *updateBody) request(s *sandbox.Sandbox) sandbox.UpdateRequest {
	req := sandbox.UpdateRequest{}
	if b.Metadata != nil {
		req.Metadata = terms.KeepTags(s, b.Metadata)
	}
	if b.Timeout.given {
		var idle int64 // null: never
		if b.Timeout.value != nil {
			idle = *b.Timeout.value
			action := sandbox.ActionPause
			req.OnTimeout = &action
		}
		req.IdleTimeoutSeconds = &idle
	}
	if b.AutoDelete.given {
		var window int64 // null: never
		if b.AutoDelete.value != nil {
			window = terms.PausedLifetime(*b.AutoDelete.value)
		}
		req.PausedLifetimeSeconds = &window
	}
	return req
}
