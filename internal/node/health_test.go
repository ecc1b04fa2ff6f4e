package node

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHealth(t *testing.T) {
	var h Health
	want := func(path string, want int) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s answers %d %q, want %d", path, w.Code, w.Body, want)
		}
	}
	want("/healthz", http.StatusOK)
	want("/readyz", http.StatusServiceUnavailable)
	want("/", http.StatusNotFound)
	h.driven.Store(true)
	want("/readyz", http.StatusOK)
}
