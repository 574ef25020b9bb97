// The search runs in a worker, which a page opened from a disk may not start. There, a hidden frame runs its script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        for (const data of this.waiting.splice(0)) this.tell(data);
        this.ready = true;
      };
      this.inside.document.body.append(script);
    }
    tell(data) {
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
    postMessage(data) {
      if (this.ready) this.tell(data);
      else this.waiting.push(data);
    }
  };
}
