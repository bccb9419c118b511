"""Serves scores in the obvious way, for comparison: `async def`, one forward pass per request, on the event loop.

`python -m bench.parts.reward_baseline MODEL --port PORT` starts it. Its faults are intended: while one request is
scored, nothing else is answered, and nothing is computed together.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

app = FastAPI()
model: Any = None
tokenizer: Any = None


class ScoreRequest(BaseModel):
    messages: list[dict[str, Any]]


@app.post("/score")
async def score(request: ScoreRequest) -> dict[str, float]:
    inputs = tokenizer.apply_chat_template(
        request.messages, return_tensors="pt", return_dict=True, truncation=True, max_length=1024
    )
    with torch.no_grad():
        return {"score": model(**inputs).logits[0, 0].item()}


@app.get("/livez")
async def livez() -> dict[str, str]:
    return {"status": "alive"}


if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)
    model = AutoModelForSequenceClassification.from_pretrained(
        sys.argv[1], dtype=torch.float32, trust_remote_code=False
    ).eval()
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[3]), access_log=False)
