"""Fine-tune a language model with the Trainer of transformers."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)


class Texts(Dataset):
    def __init__(self, count, length=10):
        self.tokens = torch.randint(0, 20, (count, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


config = GPT2Config(
    vocab_size=64,
    n_positions=32,
    n_embd=16,
    n_layer=2,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
    loss_type="ForCausalLM",
)
model = GPT2LMHeadModel(config)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    learning_rate=1e-3,
    weight_decay=0.1,
    warmup_steps=2,
    lr_scheduler_type="cosine",
    max_grad_norm=0.5,
    logging_steps=2,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Texts(42))
trainer.train()
