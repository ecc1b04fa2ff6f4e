package intercept

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/gateway/egress"
)

// The headers of responses that come from the gateway and not from the host.
const (
	HeaderError  = "Cove-Proxy-Error"
	HeaderReason = "Cove-Proxy-Reason"
)

// answer is an error response of the gateway itself.
type answer struct {
	status  int
	reason  string // a word for programs
	message string // a sentence for people
}

var (
	answerConnect = answer{http.StatusMethodNotAllowed, "connect_refused",
		"CONNECT does not work for hosts behind Cove's gateway: connect to the host directly"}
	answerTarget = answer{http.StatusBadRequest, "bad_target",
		"the request's target is neither a path nor an http or https URL"}
	answerChanged = answer{http.StatusServiceUnavailable, "credential_changed",
		"the sandbox's secrets were changed while the request waited for approval: send it again"}
	answerTooLong = answer{http.StatusRequestEntityTooLarge, "body_too_large",
		"the request is too long to put a secret into it: send the placeholder in a header, or a shorter request"}
)

func misdirected(host, name string) answer {
	return answer{http.StatusMisdirectedRequest, "host_mismatch",
		"the request is for " + strconv.Quote(host) + ", but the connection is to " + strconv.Quote(name) + ": open a connection to the host that the request is for"}
}

func credentialAnswer(status int, reason, secret, message string) answer {
	return answer{status, reason, "secret " + strconv.Quote(secret) + ": " + message}
}

func (a answer) write(w http.ResponseWriter) {
	body, err := json.Marshal(map[string]any{"error": map[string]string{"code": a.reason, "message": a.message}})
	if err != nil {
		body = []byte("{}")
	}
	h := w.Header()
	h.Set(HeaderError, "true")
	h.Set(HeaderReason, a.reason)
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(a.status)
	_, _ = w.Write(append(body, '\n'))
}

// maxReason bounds the text of an error, in bytes: a host may have chosen part of it.
const maxReason = 512

// failure returns the answer for a request that could not be forwarded to a host.
func failure(host string, err error) answer {
	if refused, ok := errors.AsType[*egress.RefusedError](err); ok {
		return answer{http.StatusForbidden, "host_denied", "the network policy of this sandbox does not allow " + host + ": " + clip.Valid(refused.Error(), maxReason)}
	}
	if trust, ok := errors.AsType[*trustError](err); ok {
		return answer{http.StatusBadGateway, "upstream_untrusted", "the certificate of " + host + " cannot be verified: " + trust.Error()}
	}
	if _, ok := errors.AsType[errTooLong](err); ok {
		return answerTooLong
	}
	if dial, ok := errors.AsType[*dialError](err); ok {
		return answer{http.StatusBadGateway, "upstream_unreachable", host + " cannot be reached: " + egress.Reason(dial)}
	}
	// The transport's error might quote the request.
	return answer{http.StatusBadGateway, "upstream_failed", host + " closed the connection, or its answer is not HTTP"}
}
