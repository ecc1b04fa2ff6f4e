package limits

import (
	"net/http"
	"time"
)

// drainTime is how long the rest of an upload is read, so that the client can read the
// answer.
const drainTime = 5 * time.Second

// Receive serves a request whose body may have any size. take reads the body, and answer
// or fail writes the answer. An error is answered while the client is still sending.
func Receive[T any](w http.ResponseWriter, r *http.Request, take func() (T, error), answer func(T), fail func(error)) {
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex()
	if r.ProtoMajor < 2 {
		w.Header().Set("Connection", "close") // the rest of a body would be read as the next request
	}
	v, err := take()
	if err == nil {
		// A form or an archive may end before its body does. In full duplex, net/http must
		// not meet the end of the body after the handler has returned: it would panic.
		if Drain(w, r, drainTime) == nil {
			w.Header().Del("Connection")
		}
		answer(v)
		return
	}
	fail(err)
	_ = rc.Flush()
	_ = Drain(w, r, drainTime) // the client may be gone
}
