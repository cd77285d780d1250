// What can be done with a trial.

import { patch, post, remove } from "../api/http";
import type { OpenedTrial, Trial, TrialStatus } from "../api/records";
import { attempt, done } from "../app/notices";
import { navigate } from "../app/router";
import { useEditor } from "../editor/store";
import { announce } from "./live";
import { trialAddress } from "./start";

type Action = "cancel" | "suspend" | "resume" | "retrain";

/** Which actions a trial of a status takes. */
export const ACTIONS: Record<TrialStatus, Action[]> = {
  queued: ["cancel"],
  running: ["suspend", "cancel"],
  suspended: ["resume", "cancel"],
  finished: ["retrain"],
  failed: ["retrain"],
  interrupted: ["resume", "retrain"],
};

export const ACTION_TITLES: Record<Action, string> = {
  cancel: "Stop",
  suspend: "Suspend",
  resume: "Resume",
  retrain: "Train again",
};

export function act(trial: Trial, action: Action, take: (trial: Trial) => void): void {
  attempt(async () => {
    const answer = await post<Trial>(`/trials/${trial.id}/${action}`);
    announce(answer);
    if (answer.id === trial.id) take(answer);
    else navigate(trialAddress(answer));
  });
}

export type Changes = Partial<Pick<Trial, "name" | "note" | "tags" | "pinned" | "locked">>;

export function change(trial: Trial, changes: Changes, take: (trial: Trial) => void): void {
  attempt(async () => {
    const answer = await patch<Trial>(`/trials/${trial.id}`, changes);
    announce(answer);
    take(answer);
  });
}

export function discard(trial: Trial, after: () => void): void {
  attempt(async () => {
    await remove(`/trials/${trial.id}`);
    done(`Trial ${trial.number} is in the trash.`);
    after();
  });
}

/** Runs a trained network over a data set; without one, over the trial's validation set. */
export function evaluate(trial: Trial, dataset: string | null = null, weights = "best"): void {
  attempt(async () => {
    const body = { dataset, weights };
    navigate(trialAddress(await post<Trial>(`/trials/${trial.id}/evaluate`, body)));
  });
}

/** Brings a trial's network back into the editor, as a step that can be undone. */
export function openInEditor(trial: Trial, withWeights: boolean): void {
  attempt(async () => {
    const opened = await post<OpenedTrial>(`/trials/${trial.id}/open`, { with_weights: withWeights });
    useEditor.getState().replace(opened.document);
    navigate(`/p/${trial.project}/edit`);
  });
}
