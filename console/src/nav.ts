import type { IconName } from "./ui/icons";

export const NAV: { to: string; text: string; icon: IconName }[] = [
  { to: "/", text: "Sandboxes", icon: "tree" },
  { to: "/approvals", text: "Approvals", icon: "help" },
  { to: "/compare", text: "Compare", icon: "merge" },
  { to: "/computers", text: "Computers", icon: "screen" },
  { to: "/templates", text: "Templates", icon: "layers" },
  { to: "/volumes", text: "Volumes", icon: "disk" },
  { to: "/secrets", text: "Secrets", icon: "lock" },
  { to: "/keys", text: "Keys", icon: "key" },
  { to: "/audit", text: "Audit", icon: "list" },
  { to: "/server", text: "Server", icon: "server" },
  { to: "/connect", text: "Connect", icon: "link" },
];
