import { expect, it } from "vitest";
import { readMetrics, requestsByDoor, sum } from "./prometheus";

const text = `# HELP cove_http_request_seconds Time of requests, by door and status class.
# TYPE cove_http_request_seconds histogram
cove_http_request_seconds_bucket{door="rest",status="2xx",le="+Inf"} 3
cove_http_request_seconds_count{door="rest",status="2xx"} 3
cove_http_request_seconds_count{door="rest",status="4xx"} 1
cove_http_request_seconds_count{door="mcp",status="5xx"} 2
cove_http_request_seconds_sum{door="rest",status="2xx"} 0.25
cove_http_request_seconds_sum{door="rest",status="4xx"} 1.5e-1
cove_build_info{version="a \\"b\\" {c}"} 1
go_goroutines 42
broken{ 1
process_open_fds NaN`;

it("reads what the server tells Prometheus", () => {
  const samples = readMetrics(text);
  expect(sum(samples, "go_goroutines")).toBe(42);
  expect(sum(samples, "process_open_fds")).toBe(0);
  expect(samples.find((s) => s.name === "cove_build_info")?.labels).toEqual({ version: 'a \\"b\\" {c}' });
  expect(requestsByDoor(samples)).toEqual([
    { door: "mcp", requests: 2, refused: 0, failed: 2, seconds: 0 },
    { door: "rest", requests: 4, refused: 1, failed: 0, seconds: 0.4 },
  ]);
});
