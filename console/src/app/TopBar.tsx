// Home, the project's name, the tabs, and what is always at hand: save, undo, theme.

import { useAnalysis } from "../editor/analysis";
import { save } from "../editor/commands";
import { useDocumentKeys } from "../editor/keys";
import { isUnsaved, useEditor } from "../editor/store";
import { Link, useLocation } from "./router";
import { useTheme } from "./theme";

const PROJECT_TABS = [
  ["edit", "Edit"],
  ["train", "Training"],
  ["eval", "Evaluation"],
  ["search", "Search"],
  ["infer", "Inference"],
  ["config", "Config"],
] as const;

const COMMON_TABS = [
  ["/data", "Data sets"],
  ["/plugins", "Plugins"],
  ["/quick", "Quick"],
  ["/chat", "Chat"],
  ["/reports", "Reports"],
] as const;

export function TopBar({ project }: { project: string | undefined }) {
  const path = useLocation().pathname;
  const opened = useEditor((state) => state.project);
  // Pages beside the project lead back to the one that is open.
  const shown = project ?? opened?.id;
  const wrong = useAnalysis((state) =>
    (state.analysis?.config ?? []).some((problem) => problem.severity === "error"),
  );
  return (
    <header className="topbar">
      <Link to="/" className="home" aria-label="Projects" title="Projects">
        <span className="logo" aria-hidden="true">
          nnl
        </span>
      </Link>
      {shown && opened?.id === shown && (
        <span className="project-name" title={opened.name}>
          {opened.name}
        </span>
      )}
      <nav aria-label="Pages">
        {shown &&
          PROJECT_TABS.map(([tab, title]) => {
            const to = `/p/${shown}/${tab}`;
            const mark = tab === "config" && wrong;
            return <Tab key={tab} to={to} title={title} current={path.startsWith(to)} wrong={mark} />;
          })}
        {shown && <span className="divider" aria-hidden="true" />}
        {COMMON_TABS.map(([to, title]) => (
          <Tab key={to} to={to} title={title} current={path.startsWith(to)} />
        ))}
      </nav>
      <span className="spread" />
      <span className="muted only-read-only">read only</span>
      {project && opened?.id === project && <DocumentButtons project={project} />}
      <ThemeButton />
      <Link to="/help" className="icon-link" aria-label="Help" title="Help">
        ?
      </Link>
    </header>
  );
}

interface TabProps {
  to: string;
  title: string;
  current: boolean;
  /** Whether there are errors on its page. */
  wrong?: boolean;
}

function Tab({ to, title, current, wrong = false }: TabProps) {
  return (
    <Link to={to} className="tab" aria-current={current ? "page" : undefined}>
      {title}
      {wrong && (
        <span className="bad" title="It has errors">
          {" "}
          ×
        </span>
      )}
    </Link>
  );
}

function DocumentButtons({ project }: { project: string }) {
  const unsaved = useEditor(isUnsaved);
  const saving = useEditor((state) => state.saving);
  const undoable = useEditor((state) => (state.history?.past.length ?? 0) > 0);
  const redoable = useEditor((state) => (state.history?.future.length ?? 0) > 0);
  const { undo, redo } = useEditor.getState();
  useDocumentKeys();
  return (
    <>
      <button className="icon" aria-label="Undo" title="Undo (Ctrl+Z)" disabled={!undoable} onClick={undo}>
        ↶
      </button>
      <button className="icon" aria-label="Redo" title="Redo (Ctrl+Shift+Z)" disabled={!redoable} onClick={redo}>
        ↷
      </button>
      <Link to={`/p/${project}/history`} className="icon-link" title="Versions" aria-label="Versions">
        ◷
      </Link>
      <button className="save changes" disabled={!unsaved || saving} onClick={save} title="Save (Ctrl+S)">
        <span className={unsaved ? "dot unsaved" : "dot"} aria-hidden="true" />
        {unsaved ? "Save" : "Saved"}
      </button>
    </>
  );
}

const THEME_SIGNS = { auto: "◐", light: "☀", dark: "☾" };

function ThemeButton() {
  const { theme, next } = useTheme();
  return (
    <button className="icon" aria-label={`Theme: ${theme}`} title={`Theme: ${theme}`} onClick={next}>
      {THEME_SIGNS[theme]}
    </button>
  );
}
