import preact from "@preact/preset-vite";
import { defineConfig, type Plugin } from "vite";

/** Where `vite dev` finds a server: one that runs with --dev, so that it asks for no key. */
const server = process.env.COVE_DEV_SERVER ?? "http://127.0.0.1:7777";

/** In development there may be no door, which is who answers for sessions and frames. */
function door(): Plugin {
  const scopes = (process.env.COVE_DEV_SCOPES ?? "admin").split(",");
  return {
    name: "cove-door",
    apply: "serve",
    configureServer(s) {
      s.middlewares.use("/console/sessions", (_, res) => {
        res.setHeader("Content-Type", "application/json");
        res.end(JSON.stringify({ items: [] }));
      });
      s.middlewares.use("/console/session", (_, res) => {
        res.setHeader("Content-Type", "application/json");
        res.end(
          JSON.stringify({ id: "", key_id: "local", key_name: "local", team: "default", scopes, version: "dev", local: true }),
        );
      });
    },
  };
}

export default defineConfig({
  base: "/console/",
  plugins: [preact({ prefreshEnabled: false }), door()],
  build: {
    outDir: "../internal/doors/console/dist",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: "esnext",
    // A part that is asked for again without its styles would stay without: styles that failed are not loaded again.
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 900,
    license: { fileName: "licences.txt" },
  },
  server: {
    proxy: { "/v1": { target: server, ws: true, changeOrigin: true, headers: { origin: server } } },
  },
  test: { include: ["src/**/*.test.ts"] },
} as Parameters<typeof defineConfig>[0]);
