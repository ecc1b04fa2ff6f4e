import type { NetworkPolicy } from "../api/client";

/** allowing returns a policy that lets a name or an address through, by a rule before all others. */
export function allowing(policy: NetworkPolicy, to: string): NetworkPolicy {
  const name = to.replace(/\.$/, "");
  const rest = (policy.rules ?? []).filter((r) => r.to !== name || r.protocol || r.ports?.length);
  return { ...policy, rules: [{ action: "allow", to: name }, ...rest] } as NetworkPolicy;
}

export type NetworkRule = NonNullable<NetworkPolicy["rules"]>[number];

/** without returns a policy without a rule, wherever it stands by now. */
export function without(policy: NetworkPolicy, rule: NetworkRule): NetworkPolicy {
  const rules = policy.rules ?? [];
  const written = canonical(rule);
  const i = rules.findIndex((r) => canonical(r) === written);
  return i < 0 ? policy : { ...policy, rules: rules.filter((_, k) => k !== i) };
}

function canonical(rule: NetworkRule): string {
  return JSON.stringify(Object.entries(rule).sort(([a], [b]) => (a < b ? -1 : 1)));
}
