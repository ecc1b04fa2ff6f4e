# The commands of this repository; each is what it says. "make demo" is the one to
# begin with, "make check" the one after each change, "make test" before it lands.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Cove is built without cgo: a binary that needs a C library cannot execute
# itself again in gVisor's empty root. Checks and tests are built alike, so that
# gVisor is compiled once for all but the race detector, which needs cgo.
export CGO_ENABLED = 0
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)
GOBUILD = go build -ldflags "-s -w -X main.version=$(VERSION)"
# All that is compiled or embedded: scripts, pages and interpreters' drivers too.
SOURCES = $(shell find api client cmd internal sandbox -type f | grep -v -e testdata -e _test.go -e $(AGENT) -e $(DIST)/) go.mod go.sum
AGENT = internal/guest/agentbin/bin/agent

# The console is built where its sources are and Node.js as it needs it; without it cove
# serves a page that says so.
DIST = internal/doors/console/dist
CONSOLE_PACKAGES = console/node_modules/.package-lock.json
ifneq ($(wildcard console/package.json),)
CONSOLE_SOURCES = $(shell find console -type f -not -path 'console/node_modules/*') api/openapi.yaml
NODE = $(shell command -v npm >/dev/null && node -p 'const [a, b] = process.versions.node.split("."); a > 20 || a == 20 && b >= 19' 2>/dev/null)
ifeq ($(NODE),true)
CONSOLE = $(DIST)/index.html
else
NO_CONSOLE = @echo "bin/cove is built without the console: that needs Node.js 20.19 or later with npm (Debian 13: apt-get install nodejs npm; else from nodejs.org). Then run make build again" >&2
endif
endif

# Where make install puts the program.
PREFIX ?= /usr/local

.PHONY: build install demo check test soak test-templates lint fuzz bench generate clean deps

build: bin/cove ## build bin/cove

# gVisor is patched for bin/cove only; "go build ./cmd/cove" makes the program with
# the module as it is, whose forks load all of their memory.
bin/cove: $(SOURCES) $(AGENT) $(CONSOLE) bin/gvisor.made
	$(GOBUILD) -modfile bin/gvisor.mod -o $@ ./cmd/cove
	$(NO_CONSOLE)

bin/gvisor.made: scripts/patch-gvisor go.mod go.sum $(shell find patches -type f)
	./scripts/patch-gvisor
	@touch $@

$(CONSOLE_PACKAGES): console/package-lock.json
	npm ci --prefix console --no-audit --no-fund
	@mkdir -p $(@D) && touch $@

# A build that fails leaves nothing that a later one would embed.
$(DIST)/index.html: $(CONSOLE_SOURCES) $(CONSOLE_PACKAGES)
	npm run build --prefix console || { rm -rf $(DIST); exit 1; }
	@touch $@

$(AGENT): $(SOURCES)
	$(GOBUILD) -o $@ ./cmd/cove-agent

install: build ## install cove below PREFIX, /usr/local unless told
	install -D -m 755 bin/cove $(DESTDIR)$(PREFIX)/bin/cove

demo: build ## build, then do the main job through a real MCP session
	go run ./examples/demo bin/cove

deps: ## install what the tests need (Debian; as an ordinary user it only says what is missing)
	./scripts/install-test-deps

check: deps lint $(AGENT) ## lint, and the tests that start no sandbox
	./scripts/test check

test: deps lint build ## check, and each verb once in real sandboxes
	COVE_BIN=$(CURDIR)/bin/cove ./scripts/test test

soak: deps lint build ## test with all of its cases, or those of PACKAGES: hours, before a release
	COVE_BIN=$(CURDIR)/bin/cove ./scripts/test soak $(PACKAGES)
	$(if $(PACKAGES),,$(MAKE) fuzz)

test-templates: build deps ## build the built-in templates for real and use them: minutes, and downloads
	COVE_BIN=$(CURDIR)/bin/cove go run ./test/templates

# It needs more modules than Cove itself, which tools.mod is spared.
GOLANGCI_LINT = go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# What looks at the OpenAPI description, by its lock file.
OPENAPI_LINT = test/openapi/node_modules/.package-lock.json

$(OPENAPI_LINT): test/openapi/package-lock.json
	npm ci --prefix test/openapi

lint: $(OPENAPI_LINT) $(if $(CONSOLE),$(CONSOLE_PACKAGES)) ## golangci-lint, format, the OpenAPI description, and the console
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GOLANGCI_LINT) run ./...
	cd test/openapi && REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true node_modules/.bin/redocly lint --config redocly.yaml ../../api/openapi.yaml
	cd test/openapi && node_modules/.bin/spectral lint --ruleset spectral.yaml --fail-severity hint ../../api/openapi.yaml
	$(if $(CONSOLE),npm run check --prefix console)

fuzz: ## run every fuzz target for FUZZTIME each
	./scripts/fuzz $(or $(FUZZTIME),20s)

bench: build ## print the numbers of GOALS.md; ONLY=e2b,code measures parts
	COVE_BIN=$(CURDIR)/bin/cove go run ./test/bench $(if $(ONLY),-only $(ONLY))

generate: ## regenerate protobuf code, OpenAPI file and snapshots
	./scripts/generate

clean:
	rm -rf bin $(AGENT) $(DIST) console/node_modules
