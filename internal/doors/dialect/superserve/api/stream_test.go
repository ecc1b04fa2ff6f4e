package api

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowAnswerSendsBlanks checks that the client of a long answer gets a status after a while, and
// blanks, which JSON allows.
func TestSlowAnswerSendsBlanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		p := newPatient(w)
		time.Sleep(patience - time.Second)
		synctest.Wait()
		p.mu.Lock()
		if w.Body.Len() > 0 {
			t.Error("the status is sent too early")
		}
		p.mu.Unlock()
		time.Sleep(2*blankEvery + 2*time.Second)
		synctest.Wait()
		p.stop()
		if !p.begun || w.Body.String() != "   " {
			t.Errorf("%q was sent", w.Body.String())
		}
		encode(w, map[string]int{"exit_code": 3})
		time.Sleep(time.Hour)
		var got map[string]int
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got["exit_code"] != 3 {
			t.Errorf("%q: %v", w.Body.String(), err)
		}
	})
}

// TestStream checks that a silent stream is kept alive, and that nothing follows its end.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := httptest.NewRecorder()
		s := newStream(w)
		if s.started() {
			t.Error("the stream began before there was anything to send")
		}
		if err := s.send(execEvent{Stdout: "a\nb"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(keepAlive + time.Second)
		synctest.Wait()
		s.close()
		if s.send(execEvent{}) == nil {
			t.Error("an event is sent after the end")
		}
		time.Sleep(time.Hour)
		want := `data: {"timestamp":"","stdout":"a\nb"}` + "\n\n: keepalive\n\n"
		if w.Body.String() != want || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
			t.Errorf("got %q", w.Body.String())
		}
	})
}
