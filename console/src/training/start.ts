// Starting a run from anywhere: the document is saved first, for a trial is of a version.

import { post } from "../api/http";
import type { Trial, TrialKind } from "../api/records";
import { attempt } from "../app/notices";
import { navigate } from "../app/router";
import { ensureSaved, useEditor } from "../editor/store";

export function start(kind: TrialKind, body: Record<string, unknown> = {}): void {
  attempt(async () => {
    if (!(await ensureSaved())) return;
    const { project, head } = useEditor.getState();
    if (!project) return;
    const trial = await post<Trial>("/trials", {
      project: project.id,
      version: head,
      kind,
      ...body,
    });
    navigate(trialAddress(trial));
  });
}

export function trialAddress(trial: Pick<Trial, "project" | "id" | "kind">): string {
  const page = trial.kind === "evaluate" ? "eval" : "train";
  return `/p/${trial.project}/${page}/${trial.id}`;
}
