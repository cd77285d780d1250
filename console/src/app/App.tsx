// The frame of all pages: the top bar, and the page that the address names.

import { lazy, Suspense, useEffect, useState, type ComponentType } from "react";
import { ApiError } from "../api/http";
import { ConflictDialog, ImportDialog } from "../editor/dialogs";
import { EditorPage } from "../editor/EditorPage";
import { useEditor } from "../editor/store";
import { Empty, Failure, Loading } from "../ui/parts";
import { NoticeList } from "./notices";
import { match } from "./pattern";
import { ProjectList } from "./ProjectList";
import { Link, useLocation } from "./router";
import { TopBar } from "./TopBar";

export type Parts = Record<string, string>;
type Page = ComponentType<{ parts: Parts }>;

// Pages of a project, by the part of the address after /p/PROJECT/.
const PROJECT_PAGES: Record<string, Page> = {
  "edit/:network?": EditorPage,
  "train/:trial?": lazy(() => import("../training/TrainingPage")),
  "eval/:trial?": lazy(() => import("../evaluation/EvaluationPage")),
  "infer/:trial?": lazy(() => import("../inference/InferencePage")),
  "search/:search?": lazy(() => import("../search/SearchPage")),
  compare: lazy(() => import("../compare/ComparePage")),
  config: lazy(() => import("../editor/ConfigPage")),
  history: lazy(() => import("../editor/HistoryPage")),
};

const PAGES: Record<string, Page> = {
  "/": ProjectList,
  "/data/:dataset?": lazy(() => import("../data/DataPage")),
  "/plugins/:plugin?": lazy(() => import("../plugins/PluginsPage")),
  "/reports/:report?": lazy(() => import("../reports/ReportsPage")),
  "/chat/:model?": lazy(() => import("../chat/ChatPage")),
  "/quick": lazy(() => import("../quick/QuickPage")),
  "/help": lazy(() => import("./HelpPage")),
};

function find(pages: Record<string, Page>, prefix: string, path: string): [Page, Parts] | null {
  for (const [pattern, page] of Object.entries(pages)) {
    const parts = match(prefix + pattern, path);
    if (parts) return [page, parts];
  }
  return null;
}

/** Opens the project that the address names, then shows what is asked for. */
function ProjectFrame({ project, page: Shown, parts }: { project: string; page: Page; parts: Parts }) {
  const open = useEditor((state) => state.open);
  const isOpen = useEditor((state) => state.project?.id === project && state.catalog !== null);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    setError(null);
    open(project).catch((reason: unknown) => {
      if (!(reason instanceof ApiError)) throw reason;
      setError(reason);
    });
  }, [open, project]);
  if (error) return <Failure error={error} />;
  if (!isOpen) return <Loading what="the project" />;
  return (
    <>
      <Shown parts={parts} />
      <ConflictDialog />
      <ImportDialog />
    </>
  );
}

export function App() {
  const path = useLocation().pathname;
  const inProject = find(PROJECT_PAGES, "/p/:project/", path);
  const alone = find(PAGES, "", path);
  const [Shown] = alone ?? [];
  return (
    <>
      <TopBar project={inProject?.[1].project} />
      <main>
        <Suspense fallback={<Loading what="the page" />}>
          {inProject ? (
            <ProjectFrame
              project={inProject[1].project ?? ""}
              page={inProject[0]}
              parts={inProject[1]}
            />
          ) : Shown ? (
            <Shown parts={alone?.[1] ?? {}} />
          ) : (
            <Empty title="There is no such page.">
              <Link to="/">To the projects</Link>
            </Empty>
          )}
        </Suspense>
      </main>
      <NoticeList />
    </>
  );
}
