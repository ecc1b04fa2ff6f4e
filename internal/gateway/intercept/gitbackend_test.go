package intercept

import (
	"net/http"
	"net/http/cgi"
)

// gitBackend serves repositories below root, as git's own program does.
func gitBackend(program, root string) http.Handler {
	return &cgi.Handler{Path: program, Root: "/", Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=me"}}
}
