"""Five people labelled six photos: what is on each, and who can be trusted.

Everything is at hand, so the model takes it at once: the offline mode.
"""

import labelquorum as lq

# {task: {worker: label}}. Not everybody labels everything.
answers = {
    "photo 1": {"ann": "cat", "ben": "cat", "cleo": "cat", "dan": "dog"},
    "photo 2": {"ann": "dog", "ben": "dog", "dan": "cat", "eve": "dog"},
    "photo 3": {"ann": "cat", "cleo": "cat", "dan": "dog", "eve": "cat"},
    "photo 4": {"ben": "dog", "cleo": "dog", "dan": "cat", "eve": "dog"},
    "photo 5": {"ann": "cat", "ben": "cat", "dan": "dog"},
    "photo 6": {"cleo": "dog", "dan": "cat"},  # one against one
}

model, vote = lq.BiLA(), lq.MajorityVote()
consensus = model.fit_predict(answers)
vote.fit(answers)

print("task      consensus   majority")
for task, label in consensus.items():
    sure, share = model.probas_.loc[task, label], vote.probas_.loc[task, label]
    print(f"{task}   {label}  {sure:4.0%}   {share:4.0%} said so")

print("\nDan says the opposite of the others, so on photo 6 Cleo is believed.")
print("How often is each of them right?")
for worker, skill in model.skills_.sort_values(ascending=False).items():
    print(f"  {worker:4}  {skill:.0%}")
