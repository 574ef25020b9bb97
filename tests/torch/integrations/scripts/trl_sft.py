"""Supervised fine-tuning of an adapter with trl."""

import tempfile

import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
words = [f"w{number}" for number in range(40)]
vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *words])}
raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
texts = [" ".join(words[k] for k in torch.randint(0, 40, (4 + number % 8,))) for number in range(36)]
table = InMemoryTable.from_pydict({"input_ids": [tokenizer(text)["input_ids"] for text in texts]})
data = Dataset(table, fingerprint="texts")  # a fingerprint of its own needs a pyarrow whose classes can be pickled
config = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
)
trainer = SFTTrainer(
    model=LlamaForCausalLM(config),
    args=SFTConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_train_epochs=1,
        logging_steps=2,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    ),
    train_dataset=data,
    processing_class=tokenizer,
    peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM"),
)
trainer.train()
