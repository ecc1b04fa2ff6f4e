import type { NetworkPolicy } from "../api/client";

/** allowing returns a policy that lets a name or an address through, by a rule before all others. */
export function allowing(policy: NetworkPolicy, to: string): NetworkPolicy {
  const name = to.replace(/\.$/, "");
  const rest = (policy.rules ?? []).filter((r) => r.to !== name || r.protocol || r.ports?.length);
  return { ...policy, rules: [{ action: "allow", to: name }, ...rest] } as NetworkPolicy;
}
