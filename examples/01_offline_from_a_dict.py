"""Five people labelled six photos. What is on each photo, and who can be trusted?

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

model = lq.BiLA()
consensus = model.fit_predict(answers)
vote = lq.MajorityVote().fit_predict(answers)

print("task      consensus  sure  majority vote")
for task, label in consensus.items():
    print(f"{task}   {label:9}  {model.probas_.loc[task, label]:4.0%}  {vote[task]}")

print("\nDan says the opposite of the others, so on photo 6 Cleo is believed.")
print("How often is each of them right?")
for worker, skill in model.skills_.sort_values(ascending=False).items():
    print(f"  {worker:4}  {skill:.0%}")
