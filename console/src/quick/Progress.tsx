// How far a training is, in one line and a bar.

import { Link } from "../app/router";
import { STEP_LOSS, useLiveTrial } from "../training/live";
import { trialAddress } from "../training/start";
import { duration, measure } from "../ui/format";
import { Failure } from "../ui/parts";

export function Progress({ id }: { id: string }) {
  const { trial, series, error } = useLiveTrial(id);
  if (error) return <Failure error={error} />;
  if (!trial) return null;
  const last = series[STEP_LOSS]?.y.at(-1);
  return (
    <section className="panel group" aria-label="Progress">
      <div className="row">
        <span className={`status ${trial.status}`}>{trial.status}</span>
        <span className="muted">
          epoch {trial.epoch ?? 0} of {trial.max_epoch ?? "?"}
          {last !== undefined && ` · loss ${measure(last)}`}
          {trial.best && ` · best ${trial.best.name} ${measure(trial.best.value)}`}
          {trial.eta_s !== null && trial.status === "running" && ` · ${duration(trial.eta_s)} left`}
        </span>
        <span className="spread" />
        <Link to={trialAddress(trial)}>Its page</Link>
      </div>
      <progress max={trial.max_epoch ?? 1} value={trial.epoch ?? 0} aria-label="Epochs" />
      {trial.error && <Failure error={trial.error} />}
    </section>
  );
}
