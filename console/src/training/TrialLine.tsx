// A trial in one line.

import type { Trial } from "../api/records";
import { Link } from "../app/router";
import { measure, moment } from "../ui/format";
import { trialAddress } from "./start";

export function TrialLine({ trial }: { trial: Trial }) {
  return (
    <li>
      <span className={`status ${trial.status}`}>{trial.status}</span>
      <Link to={trialAddress(trial)}>{trial.name || `Trial ${trial.number}`}</Link>
      <span className="spread" />
      {trial.best && (
        <span className="muted">
          {trial.best.name} {measure(trial.best.value)}
        </span>
      )}
      <span className="muted">{moment(trial.created)}</span>
    </li>
  );
}
