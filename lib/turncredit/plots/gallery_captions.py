"""What each figure of the gallery shows, before its runs are counted."""

CAPTIONS = {
    "training_reward": "Training reward, smoothed; thin: seeds, thick: their mean.",
    "total_entropy": "Mean entropy of sampled tokens, smoothed; thin: seeds, thick: their mean.",
    "clip_fraction": "Share of sampled tokens whose ratio was clipped, smoothed.",
    "turns": "Turns per trajectory, smoothed; thin: seeds, thick: their mean.",
    "search_first": "Share of training trajectories whose first turn is a search, shifts dated.",
    "decision_vs_execution": "Entropy of the first tokens of turn 0, where the agent decides "
    "how to go about the question, and of turn 1.",
    "decision_alone": "Of the failed training trajectories those in which the decision, the first "
    "turn off the path, was wrong, and every judged turn after it back on the path or following "
    "from that decision: what an outcome reward blames and should not. Labels are the world's; a "
    "step without a failure is left out.",
    "outcomes": "Final exact match on held-out questions, a dot for each seed, hollow if the run "
    "collapsed; the diamond is the mean with its t interval.",
    "differences": "Difference to the reference arm in final exact match, paired by seed, with its "
    "bootstrap interval within warm starts, or Student's t where those hold too few seeds; beside "
    "it the share of collapsed runs with Wilson's interval.",
    "variance_over_seeds": "Distance of each seed from its arm's mean, and the spread over seeds "
    "as a ratio to the reference arm's.",
    "collapse": "Share of training trajectories into whose context the evidence came; the line is "
    "where a run counts as collapsed.",
    "early_warnings": "What might have warned, aligned at the collapse of each run that has "
    "one; where no run collapsed, at its shift to another opening.",
    "actions_by_turn": "Share of each action at the first turns, and the mean reward of the "
    "trajectories that took it.",
    "entropy_divergence": "Entropy of each arm, smoothed, and its distance to the reference arm's, "
    "paired by seed.",
    "exploration": "Entropy, reward and the range of the turn weights along the steps.",
    "time_breakdown": "Where the time of a training step went; a wall clock.",
    "difficulty": "Success on held-out questions by how hard their search is.",
    "teacher_agreement": "Credit by turn of each method, and what a skill text adds to a turn's "
    "log-prob, on groups that the reference arm's policies play before and after training: "
    "correlation with the true turn advantages by continuation, share of decided turns given the "
    "other sign, share of blame on turns that the oracle calls right, which a text alone does not "
    "give; dots are seeds.",
    "teacher_association": "Chance that of a success and a failure of one group the success is the "
    "likelier to a teacher, by what its skill text adds, or to the policy itself, and the mean "
    "teacher value advantage, on the same groups; 0.5 and 0 are no association with the return. "
    "Of the policy itself the first alone is known.",
    "teacher_consequences": "What each part of ADRS changes in an advantage at the most, on the "
    "same groups: the scores in the rewards, the gate, all of it for a turn and for a token.",
    "steps_to_reach": "Steps until the reference arm's last training reward was reached, as the "
    "mean of a window of steps; its length is the earliest that can be seen.",
    "behaviour": "How an arm behaved, as means over its steps: sequences of actions, and texts, "
    "that differ within a group; of the turns with advantages of either sign those whose weight "
    "was below 1; of their tokens those that were clipped.",
    "at_budget": "Difference to the reference arm in exact match at an equal budget of environment "
    "steps, the least that any arm spent with the same seed, read between evaluations; intervals "
    "and collapsed runs as in the differences of the final scores.",
    "branching": "Rollouts of each arm: share of the branches of training that left the three "
    "trajectories of a question with most of them; of turns with more entropy than the first one, "
    "those next to another; DBSCAN cluster centres of the trajectories that the trained policy "
    "plays by the arm's rollout; tool calls of a training trajectory; standard deviation of the "
    "entropy over steps.",
    "evaluation": "Exact match on held-out questions along training, with the policy alone; thin: "
    "seeds, thick: their mean.",
    "guidance": "Guidance over all of training, on the task in which groups fail: groups whose "
    "unguided trajectories all failed; of those, the ones in which a guided trajectory succeeded; "
    "actions of the plan that their prompts were told; trajectories that the search for them threw "
    "away; how much less likely a guided trajectory is under the prompt without the plan, as a "
    "log-ratio in nats; its tokens that the plan made more than 1.25 times as likely.",
    "plan_following": "Warm starts with the first actions of an expert in their prompts: success "
    "of a trajectory, groups of which all fail, and calls of the whole plan that were made, by "
    "how many actions were told; thin: warm starts, thick: their mean.",
    "reached": "Exact match on held-out questions, with the policy alone and no plan, along the "
    "environment steps that training had spent, probes and replaced groups included; thin: seeds, "
    "thick: their mean at equal training steps.",
    "pass_at_k": "Chance that one of k tries of a held-out question succeeds, with independent "
    "trajectories of the trained policy; thin: seeds, thick: their mean.",
    "rollback": "One try of a held-out question with the rollback of failed calls off, as in every "
    "evaluation, and on; share of tool calls that fail without it; tool calls of a training "
    "trajectory, those that were taken back too; steps until the exact match is reached that the "
    "reference arm ends with, as a share of all, 1 for a run that never does.",
    "clip_grid": "What clipping does, by whose ratio is clipped, how tightly, and after how many "
    "updates on a batch; dots are seeds, filled ones their means.",
    "lambda_sweep": "Final exact match, and how far AEM's turn weights spread, by its temperature "
    "and its guard, the spread of turn entropies in a group below which its weights stay 1; dots "
    "are seeds, filled ones their means; the band is the reference arm's t interval.",
}
