import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app/App";
import { attempt } from "./app/notices";
import { markSession } from "./app/session";
import { refuseOtherFiles } from "./ui/files";
import "@xyflow/react/dist/base.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/editor.css";
import "./styles/pages.css";

const root = document.getElementById("root");
if (!root) throw new Error("index.html has no #root");
refuseOtherFiles();
attempt(markSession);
createRoot(root).render(
  <StrictMode>
    <App />
  </StrictMode>,
);
