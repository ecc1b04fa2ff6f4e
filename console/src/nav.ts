import type { IconName } from "./ui/icons";

/** The pages, in their groups. */
export const NAV: { to: string; text: string; icon: IconName; begins?: boolean }[] = [
  { to: "/", text: "Sandboxes", icon: "tree" },
  { to: "/approvals", text: "Approvals", icon: "help" },
  { to: "/compare", text: "Compare", icon: "merge" },
  { to: "/computers", text: "Computers", icon: "screen" },
  { to: "/templates", text: "Templates", icon: "layers" },
  { to: "/volumes", text: "Volumes", icon: "disk", begins: true },
  { to: "/webhooks", text: "Webhooks", icon: "bolt" },
  { to: "/secrets", text: "Secrets", icon: "lock" },
  { to: "/keys", text: "Keys", icon: "key" },
  { to: "/audit", text: "Audit", icon: "list" },
  { to: "/server", text: "Server", icon: "server", begins: true },
  { to: "/connect", text: "Connect", icon: "link" },
];
